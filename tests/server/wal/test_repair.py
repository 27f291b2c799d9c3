import random
from dataclasses import replace

import pytest

from millrace.server.wal import Ending
from millrace.wire.append_run import AppendRun
from tests.server.wal.laid_logs import FIRST, SECOND
from tests.support.files import MemoryFileSystem
from tests.support.waiting import until
from tests.support.wal import FOLDER, SMALL, append_run, build_log, log_names, open_log, recover

pytestmark = pytest.mark.asyncio


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem()


def events(count: int, *, start: int = 0) -> list[list[AppendRun]]:
    return [[append_run(7, 5 * index, b"%05d" % index)] for index in range(start, start + count)]


async def append_and_restart(files: MemoryFileSystem, *, expected: int) -> None:
    """Open, find so many runs and no new damage, append one, and find it in the next restart, after a power loss."""
    log = await open_log(files)
    assert len(log.contents()[7]) == expected
    await log.append(b"after")
    files.crash(seed=expected)
    await log.wal.close()
    again = await open_log(files)
    assert len(again.contents()[7]) == expected + 1
    assert again.wal.report.torn_bytes == 0
    await again.wal.close()


@pytest.mark.parametrize("is_truncated", [False, True])
async def test_after_a_torn_write_the_second_restart_works_too(is_truncated: bool) -> None:
    """Behaviour 39: cut at the borders of the structure and anywhere else."""
    files = MemoryFileSystem()
    placed = build_log(files, events(3))
    whole = files.content(FIRST)
    last = placed[2]
    borders = [0, 4, 8, 12, 16, 24, 32, 36, 40, 48, 63, 64, 72, 143, 144, 208, last.size - 1]
    anywhere = random.Random(4).sample(range(last.size), 5)
    for cut in [last.offset + place for place in borders + anywhere]:
        files.replace_content(FIRST, whole[:cut] if is_truncated else whole[:cut].ljust(len(whole), b"\0"))

        await append_and_restart(files, expected=2)

        for name in log_names(files):
            if name != FIRST.name:
                files.remove(FOLDER / name)


async def test_remains_of_a_torn_write_are_zeroed_before_the_log_continues(files: MemoryFileSystem) -> None:
    """Pravega #4046: what a shorter batch leaves standing of a longer torn one broke the second restart."""
    placed = build_log(files, [*events(2), [append_run(7, 10, b"x" * 3000)]])
    end = placed[2].offset
    content = bytearray(files.content(FIRST))
    content[end + 300 : end + 308] = bytes(8)
    files.replace_content(FIRST, bytes(content))

    log = await open_log(files)

    assert log.wal.report.ending is Ending.TORN
    assert log.wal.report.torn_bytes == placed[2].size
    assert files.content(FIRST)[end:].count(0) == SMALL.file_size_bytes - end
    await log.append(b"short")
    await log.wal.close()
    again = await open_log(files)
    assert again.wal.report.ending is Ending.ZEROED
    assert [payload for _, payload in again.contents()[7]] == [b"00000", b"00001", b"short"]
    await again.wal.close()


@pytest.mark.parametrize("zero_fill", [True, False])
async def test_a_torn_tail_is_zeroed_durably(files: MemoryFileSystem, zero_fill: bool) -> None:
    placed = build_log(files, events(3))
    last = placed[2]
    content = bytearray(files.content(FIRST))
    content[last.offset + last.size - 1] ^= 1
    files.replace_content(FIRST, bytes(content))

    log = await open_log(files, replace(SMALL, zero_fill=zero_fill))
    await log.wal.close()

    for seed in range(8):
        after = files.copy()
        after.crash(seed)
        assert after.content(FIRST)[last.offset :].count(0) == SMALL.file_size_bytes - last.offset


async def test_a_file_with_damage_is_not_written_any_more(files: MemoryFileSystem) -> None:
    """Behaviour 41: nothing is deleted, and nothing is written over."""
    placed = build_log(files, events(4))
    files.flip_bit(FIRST, 8 * (placed[1].offset + placed[1].size - 1))
    before = files.content(FIRST)

    log = await open_log(files)
    assert [damage.runs for damage in log.damages] == [((7, 5, 5),)]
    await log.append(b"next")
    await log.wal.close()

    assert files.content(FIRST) == before
    again = await open_log(files)
    assert [payload for _, payload in again.contents()[7]] == [b"00000", b"00002", b"00003", b"next"]
    assert len(again.damages) == 1
    assert len({batch.place for batch in again.batches}) == 2
    await again.wal.close()


async def test_a_damaged_file_with_a_torn_tail_leaves_a_log_that_restarts(files: MemoryFileSystem) -> None:
    placed = build_log(files, events(4))
    files.flip_bit(FIRST, 8 * (placed[1].offset + placed[1].size - 1))
    files.flip_bit(FIRST, 8 * (placed[3].offset + placed[3].size - 1))

    log = await open_log(files)
    assert log.wal.report.torn_bytes == placed[3].size
    assert await log.append(b"next") == 4
    await log.wal.close()

    again = await open_log(files)
    assert [payload for _, payload in again.contents()[7]] == [b"00000", b"00002", b"next"]
    assert [damage.first_sequence for damage in again.damages] == [2]
    await again.wal.close()


async def test_a_damaged_file_that_is_no_longer_needed_is_put_aside(files: MemoryFileSystem) -> None:
    """Behaviour 41: evidence is never recycled or deleted."""
    placed = build_log(files, events(4))
    files.flip_bit(FIRST, 8 * (placed[1].offset + placed[1].size - 1))
    before = files.content(FIRST)
    log = await open_log(files)
    sequence = await log.append(b"next")

    log.wal.recycle(sequence - 1)
    await until(lambda: not files.exists(FIRST))
    await log.wal.close()

    assert files.content(FIRST.with_name(FIRST.name + ".damaged")) == before
    again = await open_log(files, from_sequence=sequence)
    assert again.damages == []
    assert again.wal.report.damages == []
    assert [payload for _, payload in again.contents()[7]] == [b"next"]
    await again.wal.close()


async def test_a_damaged_spare_is_put_aside_and_its_number_not_used_again(files: MemoryFileSystem) -> None:
    build_log(files, events(1), [])
    files.flip_bit(SECOND, 3)

    log = await open_log(files)
    await until(lambda: log.wal.statistics().spare_files == 1)
    await log.wal.close()

    assert log_names(files) == [
        "wal-0000000000000001.log",
        "wal-0000000000000002.log.damaged",
        "wal-0000000000000003.log",
    ]


async def test_a_spare_cut_short_is_replaced(files: MemoryFileSystem) -> None:
    build_log(files, events(1), [])
    files.replace_content(SECOND, files.content(SECOND)[:8192])

    log = await open_log(files)
    await until(lambda: log.wal.statistics().spare_files == 1)
    await log.wal.close()

    assert {files.size(FOLDER / name) for name in log_names(files)} == {SMALL.file_size_bytes}


async def test_a_log_whose_last_file_is_unusable_continues_in_a_spare(files: MemoryFileSystem) -> None:
    build_log(files, events(2), [])
    files.flip_bit(FIRST, 8 * 20)

    log = await open_log(files)
    assert len(log.contents()[7]) == 2
    await log.append(b"next")
    await log.wal.close()

    again = await open_log(files)
    assert {batch.place for batch in again.batches} == {FIRST.name, SECOND.name}
    assert len(again.contents()[7]) == 3
    await again.wal.close()


async def test_a_start_that_fails_leaves_a_log_that_starts(files: MemoryFileSystem) -> None:
    placed = build_log(files, events(3))
    files.flip_bit(FIRST, 8 * (placed[2].offset + placed[2].size - 1))
    files.fail_syncs()

    with pytest.raises(OSError, match="Input/output error"):
        await open_log(files)

    await append_and_restart(files, expected=2)


async def test_the_last_batch_at_the_end_of_the_file_before_is_made_durable(files: MemoryFileSystem) -> None:
    """The next file holds only the remains of a write; the batch in doubt stands in the one before."""
    placed = build_log(files, events(2), events(1, start=2))
    files.flip_bit(SECOND, 8 * (placed[2].offset + placed[2].size - 1))

    items, recovery = recover(files)
    assert recovery.end is not None
    assert recovery.last is not None
    assert (recovery.end.path, recovery.last[0].path) == (SECOND, FIRST)
    assert len(items) == 2

    await append_and_restart(files, expected=2)
