"""Health of the local disk: whether it fails, and since when.

A server whose log is in an object store can be replaced by one on another machine. So it has to tell trouble of its own
disk, which the other one does not have, from trouble of the store, which both have.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from millrace.server.errors import (
    CheckpointDamagedError,
    ConfigurationError,
    DiskUnavailableError,
    NoSpaceError,
    OwnedElsewhereError,
    UnsupportedStoreError,
)

from .clock import Clock

_OF_DISK: Final = (OSError, NoSpaceError, DiskUnavailableError, CheckpointDamagedError, ConfigurationError)
_OF_OTHERS: Final = (TimeoutError, ConnectionError, OwnedElsewhereError, UnsupportedStoreError)
"""Kinds of these that are not of a disk."""


@dataclass(frozen=True, slots=True)
class DiskFailure:
    """Something that the disk of this machine refuses.

    Attributes:
        since_s: of the monotonic clock, when it was first refused; it has not succeeded since.
        error: the last error, for people.
    """

    since_s: float
    error: str


class DiskHealth:
    """Notes whether something that needs the disk of this machine succeeds. Belongs to one event loop.

    Attributes:
        failure: None unless the last attempts, one or more, have failed for the disk.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.failure: DiskFailure | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note what an attempt comes to. One that fails for another reason says nothing of the disk."""
        try:
            yield
        except Exception as error:
            if is_of_disk(error):
                since_s = self._clock.monotonic_s() if self.failure is None else self.failure.since_s
                self.failure = DiskFailure(since_s, str(error))
            raise
        self.failure = None


def is_of_disk(error: Exception) -> bool:
    """Return whether an error is of the disk of this machine, where tier 2 and the log are in an object store."""
    return isinstance(error, _OF_DISK) and not isinstance(error, _OF_OTHERS)
