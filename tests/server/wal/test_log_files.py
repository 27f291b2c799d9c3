"""The files of a log that is written: begun, named, full, used again, missing."""

import asyncio
from dataclasses import replace

import pytest

from millrace.server.errors import NoSpaceError
from millrace.server.wal import NEWEST_NAME, Ending, WalOptions, read_log_head
from millrace.server.wal.batch import decode_file_header
from millrace.server.wal.log_head import FileUse, open_log_head
from millrace.server.wal.logfile import log_file_name
from millrace.wire.limits import KIB
from millrace.wire.schema.newest import NEWEST_SLOT_SIZE_BYTES
from tests.support.files import MemoryFileSystem
from tests.support.waiting import until
from tests.support.wal import (
    FOLDER,
    SMALL,
    OpenLog,
    append_run,
    build_log,
    control_run,
    create,
    log_names,
    open_and_close,
    open_log,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.both_loops]

NEWEST_SIZE_BYTES = 2 * NEWEST_SLOT_SIZE_BYTES


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem()


async def test_a_log_spans_files_and_each_run_is_whole_in_one(files: MemoryFileSystem) -> None:
    log = await open_log(files)
    for _ in range(6):
        await log.append(bytes(4000))
    assert log.wal.statistics().full_files >= 2
    await log.wal.close()

    again = await open_and_close(files)

    assert len(again.contents()[7]) == 6
    assert len({batch.place for batch in again.batches}) >= 3


async def test_files_no_longer_needed_are_used_again_under_a_new_salt(files: MemoryFileSystem) -> None:
    """Behaviour 42: stale bytes of a recycled file are not batches of the log."""
    log = await open_log(files)
    for index in range(60):
        sequence = await log.append(bytes([index]) * 3000)
        log.wal.recycle(sequence)
        await until(lambda: log.wal.refusal is None)
    assert log.wal.statistics().full_files <= 1
    needed_from = sequence - 1
    await log.wal.close()
    assert len(log_names(files)) <= SMALL.files_max

    again = await open_log(files, from_sequence=needed_from)

    assert [batch.sequence for batch in again.batches][:2] == [needed_from, sequence]
    assert again.wal.report.damages == []
    assert again.wal.report.ending in (Ending.END, Ending.ZEROED)
    assert await again.append(b"next") == sequence + 2
    await again.wal.close()


async def test_at_its_bound_the_log_refuses_appends_and_takes_control_records(files: MemoryFileSystem) -> None:
    """Behaviour 44: truncates and deletes work when appends no longer do, and it recovers by itself."""
    log = await open_log(files)
    await until(lambda: log.wal.statistics().spare_files == 1)
    while log.wal.refusal is None:
        await log.append(bytes(1000))
    await until(lambda: log.wal.refusal == "the log has reached its limit of 4 files")
    with pytest.raises(NoSpaceError, match="its limit of 4 files") as caught:
        await log.append(bytes(SMALL.run_size_bytes_max - 64))
    assert caught.value.retriable
    sequence = await log.submit_run(control_run(b"truncate"))
    assert log.wal.refusal is not None
    assert log.wal.fullness >= 0.75

    log.wal.recycle(sequence)
    await until(lambda: log.wal.refusal is None)

    await log.append(bytes(1000))
    await log.wal.close()


async def test_while_it_has_room_the_largest_run_is_never_refused(files: MemoryFileSystem) -> None:
    log = await open_log(files)
    count = 0
    while log.wal.refusal is None:
        last = log.submit(bytes(SMALL.run_size_bytes_max - 64))
        count += 1
    assert count >= 3
    await log.wal.close()
    assert sum(len(runs) for runs, _, _ in log.durable) == count
    assert last.done()


async def test_a_full_disk_refuses_appends_until_there_is_space(files: MemoryFileSystem) -> None:
    """Behaviour 44: NoSpace before any ack, and recovery without help when space returns."""
    files.capacity_bytes = 2 * SMALL.file_size_bytes + NEWEST_SIZE_BYTES
    log = await open_log(files)
    while log.wal.refusal is None:
        await log.append(bytes(1000))
    await until(lambda: log.wal.refusal == "the disk has no space for another log file")
    await log.submit_run(control_run(b"delete"))
    assert log.wal.refusal is not None

    files.capacity_bytes = 3 * SMALL.file_size_bytes + NEWEST_SIZE_BYTES
    await until(lambda: log.wal.refusal is None)

    await log.append(bytes(1000))
    await log.wal.close()


async def test_a_full_disk_is_relieved_by_recycling(files: MemoryFileSystem) -> None:
    files.capacity_bytes = 2 * SMALL.file_size_bytes + NEWEST_SIZE_BYTES
    log = await open_log(files)
    while log.wal.refusal is None:
        sequence = await log.append(bytes(1000))
    log.wal.recycle(sequence)
    async with asyncio.timeout(10):
        while log.wal.statistics().full_files == 0:
            try:
                sequence = await control(log)
            except NoSpaceError:  # the thread has not made a spare of the recycled file yet
                await asyncio.sleep(0)

    log.wal.recycle(sequence)

    await until(lambda: log.wal.refusal is None)
    await log.wal.close()


async def control(log: OpenLog) -> int:
    return await log.submit_run(control_run(bytes(500)))


async def test_a_disk_too_small_for_one_file_fails_the_start(files: MemoryFileSystem) -> None:
    files.capacity_bytes = SMALL.file_size_bytes - 1
    log = create(files)
    assert list(log.wal.recover()) == []

    with pytest.raises(NoSpaceError):
        await log.start()
    await log.wal.close()

    assert files.list_directory(FOLDER) == []


async def test_leftovers_of_a_preparation_are_removed(files: MemoryFileSystem) -> None:
    await open_and_close(files)
    name = "wal-0000000000000009.log.preparing"
    files.open(FOLDER / name, create=True).close()

    await open_and_close(files)

    assert name not in files.list_directory(FOLDER)


async def test_a_file_size_that_was_changed_takes_effect_with_the_next_files(files: MemoryFileSystem) -> None:
    log = await open_log(files)
    await until(lambda: log.wal.statistics().spare_files == 1)
    await log.append(b"small")
    await log.wal.close()
    larger = WalOptions(
        spare_files=1,
        file_size_bytes=64 * 1024,
        files_max=4,
        run_size_bytes_max=20_000,
        headroom_bytes=4096,
        retry_interval_s=0.01,
    )

    again = await open_log(files, larger)
    futures = [again.submit(bytes(19_000)) for _ in range(2)]
    await asyncio.gather(*futures)
    await again.wal.close()

    third = await open_log(files, larger)
    assert [len(payload) for _, payload in third.contents()[7]] == [5, 19_000, 19_000]
    await third.wal.close()


@pytest.mark.parametrize("damage", ["missing", "emptied", "another use"])
async def test_a_log_of_which_nothing_is_left_is_not_a_new_one(files: MemoryFileSystem, damage: str) -> None:
    """Behaviour 82: what it held was acknowledged, and must not be given out again."""
    build_log(files, [[append_run(7, 0, b"acked")]])
    path = FOLDER / log_file_name(1)
    if damage == "missing":
        files.remove(path)
    elif damage == "emptied":
        files.replace_content(path, b"")
    else:
        name = files.content(FOLDER / NEWEST_NAME)
        build_log(files, [], salts=[77])
        files.replace_content(FOLDER / NEWEST_NAME, name)
    before = log_names(files)
    for _ in range(2):
        log = create(files)
        list(log.wal.recover())
        lost = log.wal.report.damages[-1]
        assert (lost.place, lost.is_complete, lost.is_end) == (path.name, False, True)
        assert not log.wal.report.batch_count
        await log.wal.close()
    assert log_names(files) == before


async def test_the_loss_of_the_newest_file_is_told_until_the_log_is_past_it(files: MemoryFileSystem) -> None:
    """Behaviour 82: also at the next start, and the number is not given again."""
    build_log(files, [[append_run(7, 0, b"first")]], [[append_run(7, 5, b"second")]])
    files.remove(FOLDER / log_file_name(2))
    for restart in range(2):
        log = await open_log(files)
        (damage,) = log.wal.report.damages
        assert (damage.place, damage.is_complete) == (log_file_name(2), False)
        assert [batch.sequence for batch in log.batches][-1] == 1 + 2 * restart
        await log.append(b"next")
        await log.wal.close()

    log = await open_log(files)
    for _ in range(4):
        await log.append(bytes(3000))
    assert read_log_head(files, FOLDER).named in [FileUse(3, salt_of(files, 3)), FileUse(4, salt_of(files, 4))]
    await log.wal.close()
    again = await open_and_close(files)

    assert again.wal.report.damages == []
    assert not files.exists(FOLDER / log_file_name(2))


def salt_of(files: MemoryFileSystem, number: int) -> int:
    path = FOLDER / log_file_name(number)
    header = decode_file_header(files.content(path)) if files.exists(path) else None
    return header.salt if header is not None else 0


async def test_a_log_from_before_its_newest_file_was_named_is_told_once(files: MemoryFileSystem) -> None:
    build_log(files, [[append_run(7, 0, b"first")]])
    files.remove(FOLDER / NEWEST_NAME)

    log = await open_and_close(files)
    again = await open_and_close(files)

    assert [damage.place for damage in log.wal.report.damages] == [NEWEST_NAME]
    assert again.wal.report.damages == []
    assert again.contents()[7] == [(0, b"first")]


async def test_a_spare_that_is_named_outlives_a_change_of_the_file_size(files: MemoryFileSystem) -> None:
    build_log(files, [[append_run(7, 0, b"first")]], [], [])
    open_log_head(files, FOLDER, FileUse(2, salt_of(files, 2))).close()
    larger = replace(SMALL, file_size_bytes=64 * KIB)
    for _ in range(2):
        log = await open_log(files, larger)
        assert log.wal.report.damages == []
        await log.wal.close()
    sizes = {name: files.size(FOLDER / name) for name in log_names(files)}
    assert sizes == {log_file_name(1): 16 * KIB, log_file_name(2): 16 * KIB}
