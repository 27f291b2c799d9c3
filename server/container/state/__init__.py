"""The state of a container and the records that change it."""
