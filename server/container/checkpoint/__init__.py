"""The checkpoint: the state of a container in a SQLite file, its rows, verification and copies in tier 2."""
