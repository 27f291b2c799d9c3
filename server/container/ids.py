"""Numbers of segments, streams and writers, which say in which container they live, forever.

    bits 63..48   the container, below 32,768: the sign bit stays 0, since Arrow, Spark and SQLite know signed integers
    bits 47..0    a number of the container's own, from 1

So all numbers of container 0 are small.
"""

from typing import Final

CONTAINER_SHIFT: Final = 48
CONTAINERS_COUNT_MAX: Final = 1 << 15
CONTAINER_EPOCHS_COUNT: Final = 1024
"""By how much the epoch of a container jumps when a loss is accepted, above all that is known: more starts than anyone
makes in one log."""


def first_id(container: int) -> int:
    """Return the first number that a container gives."""
    assert 0 <= container < CONTAINERS_COUNT_MAX
    return (container << CONTAINER_SHIFT) + 1


def container_of(number: int) -> int:
    """Return the container in which the thing with that number lives."""
    return number >> CONTAINER_SHIFT


def scope_of(container: int) -> str:
    """Return what the names of all chunks and checkpoint copies of a container begin with in a shared storage."""
    return f"c{container:04x}/"
