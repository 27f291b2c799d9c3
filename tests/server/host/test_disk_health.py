"""Trouble of the disk of this machine, told from other trouble."""

import errno

import pytest

from millrace.server.errors import (
    CheckpointDamagedError,
    ConfigurationError,
    ContentLostError,
    DiskUnavailableError,
    NoSpaceError,
    OwnedElsewhereError,
    StorageError,
    StoreBusyError,
    StoreFullError,
    StoreRefusedError,
    StoreUnavailableError,
    UnsupportedStoreError,
)
from millrace.server.host.disk_health import DiskFailure, DiskHealth, is_of_disk
from tests.support.clock import ManualClock
from tests.support.tables import table


@table(
    "error",
    [
        OSError(errno.EIO, "Input/output error"),
        OSError(errno.EROFS, "Read-only file system"),
        NoSpaceError("No space left on device"),
        DiskUnavailableError("disk I/O error"),
        CheckpointDamagedError("the sums do not match"),
        ConfigurationError("does not show whether this folder owns its container"),
    ],
)
def test_what_another_machine_would_not_meet_is_of_the_disk(error: Exception) -> None:
    assert is_of_disk(error)


@table(
    "error",
    [
        StoreUnavailableError("nobody answers"),
        StoreBusyError("slow down"),
        StoreFullError("it is full"),
        StoreRefusedError("no credentials"),
        UnsupportedStoreError("is that of another server"),
        OwnedElsewhereError("is served by another server"),
        ContentLostError("a batch is missing"),
        StorageError("the container has failed"),
        TimeoutError(),
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
        ValueError("a defect"),
    ],
)
def test_what_another_machine_would_meet_too_is_not(error: Exception) -> None:
    assert not is_of_disk(error)


def test_a_failure_lasts_from_the_first_attempt_until_one_succeeds() -> None:
    clock = ManualClock(monotonic_s=10.0)
    watch = DiskHealth(clock)
    assert watch.failure is None
    for error in ("first", "second"):
        with pytest.raises(OSError, match=error), watch.watched():
            raise OSError(errno.EIO, error)
        clock.move(5.0)
    assert watch.failure == DiskFailure(10.0, "[Errno 5] second")
    with watch.watched():
        pass
    assert watch.failure is None


def test_other_trouble_says_nothing_of_the_disk() -> None:
    watch = DiskHealth(ManualClock(monotonic_s=10.0))
    with pytest.raises(StoreUnavailableError), watch.watched():
        raise StoreUnavailableError("nobody answers")
    assert watch.failure is None
    with pytest.raises(NoSpaceError), watch.watched():
        raise NoSpaceError("full")
    with pytest.raises(StoreUnavailableError), watch.watched():
        raise StoreUnavailableError("nobody answers")
    assert watch.failure == DiskFailure(10.0, "full")
