from pathlib import Path

import pytest

from millrace.server.errors import NoSpaceError
from millrace.server.host.room import RESERVE_BYTES_MIN, RESERVED_CHECKPOINTS_COUNT, DiskRoom
from millrace.wire.limits import KIB, MIB
from tests.support.files import MemoryFileSystem

FOLDER = Path("/data")
CHECKPOINT = FOLDER / "checkpoint.db"


@pytest.fixture
def files() -> MemoryFileSystem:
    files = MemoryFileSystem(capacity_bytes=16 * MIB)
    files.make_directories(FOLDER)
    return files


def test_the_reserve_grows_with_the_checkpoint(files: MemoryFileSystem) -> None:
    room = DiskRoom(files)
    assert room.free_bytes(FOLDER) == 16 * MIB

    room.reserve_for(CHECKPOINT)
    assert room.free_bytes(FOLDER) == 16 * MIB - RESERVE_BYTES_MIN

    files.open(CHECKPOINT, create=True).truncate(MIB)
    assert room.reserve_bytes == RESERVE_BYTES_MIN + RESERVED_CHECKPOINTS_COUNT * MIB
    assert room.free_bytes(FOLDER) == 15 * MIB - room.reserve_bytes


def test_two_files_that_are_written_at_once_do_not_claim_the_same_room(files: MemoryFileSystem) -> None:
    room = DiskRoom(files)
    room.reserve_for(CHECKPOINT)
    with room.claimed(FOLDER, 8 * MIB):
        with (
            pytest.raises(NoSpaceError, match=r"a file of 5.0 MiB: 4.0 MiB are free, not counting the reserve of 4.0"),
            room.claimed(FOLDER, 5 * MIB),
        ):
            pass
        with room.claimed(FOLDER, 4 * MIB):
            assert room.free_bytes(FOLDER) == 0
    assert room.free_bytes(FOLDER) == 12 * MIB


def test_a_failure_gives_a_claim_back(files: MemoryFileSystem) -> None:
    room = DiskRoom(files)
    with pytest.raises(OSError, match="failed"), room.claimed(FOLDER, 8 * KIB):
        raise OSError("failed")
    assert room.free_bytes(FOLDER) == 16 * MIB
