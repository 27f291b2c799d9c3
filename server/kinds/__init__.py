"""The kinds of entities, one folder each: its commands, loops and requests."""
