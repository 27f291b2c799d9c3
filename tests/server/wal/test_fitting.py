from dataclasses import replace
from pathlib import Path

import pytest

from millrace.server.errors import NoSpaceError
from millrace.server.host.room import DiskRoom
from millrace.server.wal import WalOptions
from millrace.server.wal.fitting import fitted, needed_bytes
from millrace.server.wal.logfile import PREPARING_SUFFIX, log_file_name
from millrace.wire.limits import MIB
from tests.support.files import MemoryFileSystem
from tests.support.waiting import until
from tests.support.wal import FOLDER as WAL_FOLDER
from tests.support.wal import SMALL, log_names, open_log

FOLDER = Path("/data/containers/0000/wal")
DEFAULT = WalOptions()


def volume(size_bytes: int, *, has_tier2: bool = True) -> DiskRoom:
    files = MemoryFileSystem(capacity_bytes=size_bytes)
    files.make_directories(FOLDER)
    room = DiskRoom(files, has_tier2=has_tier2)
    room.reserve_for(FOLDER.parent / "checkpoint.db")
    return room


@pytest.mark.parametrize(
    ("size_bytes", "has_tier2", "is_small"),
    [(96 * MIB, True, True), (195 * MIB, True, True), (196 * MIB, True, False), (132 * MIB, False, False)],
)
def test_log_files_are_smaller_on_a_small_volume(size_bytes: int, has_tier2: bool, is_small: bool) -> None:
    """Behaviour 103."""
    options = fitted(DEFAULT, volume(size_bytes, has_tier2=has_tier2), FOLDER, log_bytes=0)

    size = DEFAULT.file_size_bytes_min if is_small else DEFAULT.file_size_bytes
    assert options == replace(DEFAULT, file_size_bytes=size)


def test_a_volume_of_64_mib_is_refused_and_the_error_names_what_would_fit() -> None:
    """Behaviour 103."""
    with pytest.raises(NoSpaceError) as refused:
        fitted(DEFAULT, volume(64 * MIB), FOLDER, log_bytes=0)

    assert str(refused.value) == (
        "/data/containers/0000/wal: the volume has space for 64.0 MiB, but 76.0 MiB are needed: two log files of "
        "34.0 MiB, which hold wal.run_size_bytes_max, 17 MiB, and wal.headroom_bytes, 17 MiB; and 8.0 MiB for "
        "checkpoints and chunks. Use a larger volume, or set wal.run_size_bytes_max=13 MiB and "
        "wal.headroom_bytes=13 MiB"
    )
    smaller = replace(DEFAULT, run_size_bytes_max=13 * MIB, headroom_bytes=13 * MIB)
    assert fitted(smaller, volume(64 * MIB), FOLDER, log_bytes=0).file_size_bytes < 28 * MIB


def test_a_volume_on_which_no_settings_help_is_refused_without_any() -> None:
    for size in (1, 8):
        with pytest.raises(NoSpaceError, match=rf"has space for {size}.0 MiB, .* Use a larger volume$"):
            fitted(DEFAULT, volume(size * MIB), FOLDER, log_bytes=0)


def test_a_log_that_exists_is_opened_on_any_volume() -> None:
    """Behaviour 103: its data can be read and truncated."""
    options = fitted(DEFAULT, volume(MIB), FOLDER, log_bytes=34 * MIB)

    assert options.file_size_bytes == DEFAULT.file_size_bytes_min


def test_the_need_is_two_files_and_a_reserve() -> None:
    needed = needed_bytes(DEFAULT, reserve_bytes=MIB, has_tier2=False)

    assert needed == 2 * DEFAULT.file_size_bytes_min + MIB


@pytest.mark.asyncio
@pytest.mark.parametrize("zero_fill", [True, False])
async def test_a_full_log_of_smaller_files_starts_on_a_volume_that_has_grown(*, zero_fill: bool) -> None:
    """Behaviour 103: the file in use is not extended, for which there may be no room."""
    files, small = MemoryFileSystem(), replace(SMALL, files_max=12, zero_fill=zero_fill)
    larger = replace(small, file_size_bytes=4 * small.file_size_bytes)
    log = await open_log(files, small)
    for _ in range(30):
        await log.append(bytes(3000))
    await log.wal.close()
    files.capacity_bytes = files.used_bytes

    again = await open_log(files, larger)

    assert len(again.contents()[7]) == 30
    assert again.wal._options.file_size_bytes == larger.file_size_bytes
    files.capacity_bytes += larger.file_size_bytes
    await until(lambda: again.wal.refusal is None)
    await again.append(b"after")
    await again.wal.close()


@pytest.mark.asyncio
async def test_a_file_that_a_crash_left_unfinished_takes_no_room_of_a_new_log() -> None:
    """Behaviour 103: a server that is killed in its first start on a small volume starts again."""
    files = MemoryFileSystem(capacity_bytes=needed_bytes(SMALL, reserve_bytes=0, has_tier2=False))
    files.make_directories(WAL_FOLDER)
    unfinished = WAL_FOLDER / (log_file_name(1) + PREPARING_SUFFIX)
    files.open(unfinished, create=True).truncate(SMALL.file_size_bytes_min)

    log = await open_log(files)
    await log.append(b"first")
    await log.wal.close()

    assert not files.exists(unfinished)


@pytest.mark.asyncio
async def test_a_large_file_that_is_hardly_used_is_cut_to_the_size_that_fits() -> None:
    """Behaviour 103: the only file of a log from an earlier version would keep the next one from a small volume."""
    files = MemoryFileSystem()
    log = await open_log(files, replace(SMALL, file_size_bytes=4 * SMALL.file_size_bytes))
    await log.append(b"first")
    await until(lambda: log.wal.statistics().spare_files == 1)
    await log.wal.close()
    for name in log_names(files)[1:]:
        files.remove(WAL_FOLDER / name)
    files.capacity_bytes = files.used_bytes + SMALL.file_size_bytes // 2

    again = await open_log(files, SMALL)
    for _ in range(40):
        await until(lambda: again.wal.refusal is None)
        sequence = await again.append(bytes(3000))
        again.wal.recycle(sequence - 1)
    await again.wal.close()

    last = await open_log(files, SMALL, from_sequence=sequence)
    assert [len(payload) for _, payload in last.contents()[7]] == [3000]
    await last.wal.close()
