"""Health of the local disk: whether it fails, and since when.

A server whose log is in an object store can be replaced by a server on another machine. So it distinguishes failures of
its own disk, which the other machine does not share, from failures of the store, which both share.
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
    """A failure of the local disk.

    Attributes:
        since_s: monotonic time of the first failure; nothing has succeeded since.
        error: the last error, for people.
    """

    since_s: float
    error: str


class DiskHealth:
    """Tracks whether operations on the local disk succeed. Belongs to one event loop.

    Attributes:
        failure: None unless the most recent attempts, at least one, failed because of the disk.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.failure: DiskFailure | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Record the outcome of an attempt. A failure for another reason leaves the health as it is."""
        try:
            yield
        except Exception as error:
            if is_of_disk(error):
                since_s = self._clock.monotonic_s() if self.failure is None else self.failure.since_s
                self.failure = DiskFailure(since_s, str(error))
            raise
        self.failure = None


def is_of_disk(error: Exception) -> bool:
    """Return whether an error comes from the local disk, given that tier 2 and the log are in an object store."""
    return isinstance(error, _OF_DISK) and not isinstance(error, _OF_OTHERS)
