import asyncio
import threading
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.server.errors import FolderVersionError, LogClosedError, LogFailedError, NoSpaceError
from millrace.server.host.clock import SystemClock
from millrace.server.host.files import OsFileSystem
from millrace.server.wal import NEWEST_NAME, Ending, LogOwner, Wal, WalOptions, read_newest
from millrace.server.wal.batch import decode_file_header
from millrace.server.wal.logfile import log_file_name
from millrace.server.wal.newest import FileUse, open_newest
from millrace.wire.append_run import AppendRun
from millrace.wire.limits import KIB, MIB
from millrace.wire.schema.newest import NEWEST_SLOT_SIZE_BYTES
from tests.support.clock import ManualClock
from tests.support.files import STALL_S_MAX, MemoryFileSystem
from tests.support.waiting import until
from tests.support.wal import (
    FOLDER,
    OWNER,
    SMALL,
    OpenLog,
    append_run,
    build_log,
    control_run,
    create,
    log_names,
    open_log,
    recover,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.both_loops]

NEWEST_SIZE_BYTES = 2 * NEWEST_SLOT_SIZE_BYTES


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem()


async def test_what_is_handed_back_is_durable_and_in_order(files: MemoryFileSystem) -> None:
    """Behaviour 5: an ack is for synced bytes only."""
    log = await open_log(files)
    futures = [log.submit(b"event %d" % index, segment_id=index % 3) for index in range(50)]
    sequences = await asyncio.gather(*futures)
    assert sequences == sorted(sequences)
    assert log.wal.durable_sequence == sequences[-1]
    assert log.wal.queued_bytes == 0
    await lose_power(files, log, seed=1)

    again = await open_log(files)

    assert again.contents()[1][:2] == [(0, b"event 1"), (7, b"event 4")]
    assert sum(len(runs) for runs in again.contents().values()) == 50
    assert again.wal.durable_sequence == sequences[-1]
    await again.wal.close()


async def lose_power(files: MemoryFileSystem, log: OpenLog, *, seed: int) -> None:
    files.crash(seed)
    await log.wal.close()


async def test_what_queued_during_a_sync_is_one_batch(files: MemoryFileSystem) -> None:
    log = await open_log(files)
    assert await log.append(b"names the first file") == 1
    files.stall()
    first = log.submit(b"first")
    await asyncio.to_thread(files.stalled.wait)
    others = [log.submit(b"other") for _ in range(5)]
    assert log.wal.queued_bytes == 6 * (64 + 5)
    files.resume()

    assert await first == 2
    assert [await other for other in others] == [3] * 5
    await log.wal.close()


async def test_batches_end_at_the_soft_bound(files: MemoryFileSystem) -> None:
    log = await open_log(files)
    assert await log.append(b"names the first file") == 1
    files.stall()
    first = log.submit(b"first")
    await asyncio.to_thread(files.stalled.wait)
    others = [log.submit(bytes(500)) for _ in range(6)]
    larger = log.submit(bytes(3000))
    files.resume()

    assert await first == 2
    assert [await other for other in others] == [3, 3, 3, 4, 4, 4]
    assert await larger == 5
    await log.wal.close()


async def test_a_batch_carries_the_time_of_the_clock(files: MemoryFileSystem) -> None:
    clock = ManualClock(unix_us=123_000)
    log = await open_log(files, clock=clock)
    await log.append(b"a")
    clock.move(2)
    await log.append(b"b")
    await log.wal.close()

    assert [wall_time_us for _, _, wall_time_us in log.durable] == [123_000, 2_123_000]
    assert [batch.wall_time_us for batch in (await open_and_close(files)).batches][:2] == [123_000, 2_123_000]


async def open_and_close(files: MemoryFileSystem) -> OpenLog:
    log = await open_log(files)
    await log.wal.close()
    return log


async def test_sequence_and_chain_continue_across_restarts(files: MemoryFileSystem) -> None:
    """Behaviour 39: the second restart works too."""
    expected: list[tuple[int, bytes]] = []
    for restart in range(5):
        log = await open_log(files)
        assert log.contents().get(7, []) == expected
        assert log.wal.report.damages == []
        payload = b"restart %d" % restart
        expected.append((log.lengths.get(7, 0), payload))
        await log.append(payload)
        await log.wal.close()
    assert log.wal.report.ending is Ending.ZEROED


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
    await until(lambda: log.wal.refusal == "the log has reached its bound of 4 files")
    with pytest.raises(NoSpaceError, match="its bound of 4 files") as caught:
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
    await until(lambda: log.wal.refusal == "the disk has no room for another log file")
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
    while log.wal.statistics().full_files == 0:
        sequence = await asyncio.wait_for(control(log), 10)

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


@pytest.mark.parametrize("fault", ["sync", "write"])
async def test_a_failed_write_or_sync_is_final(files: MemoryFileSystem, fault: str) -> None:
    """Behaviour 43: waiting appends end as unknown, no ack ever comes later, and recovery is from the log."""
    log = await open_log(files)
    await until(lambda: log.wal.statistics().spare_files == 1)
    await log.append(b"before")
    files.stall()
    in_flight = log.submit(b"in flight")
    await asyncio.to_thread(files.stalled.wait)
    queued = log.submit(b"queued")
    if fault == "sync":
        files.fail_syncs()
    else:
        files.resume()
        await in_flight
        files.stall()
        in_flight = log.submit(b"second")
        await asyncio.to_thread(files.stalled.wait)
        files.fail_writes(1)
        queued = log.submit(b"queued after")
    files.resume()
    await until(lambda: log.failures != [])
    syncs = files.sync_count

    assert len(log.failures) == 1
    assert isinstance(log.failures[0], LogFailedError)
    assert not queued.done()
    assert in_flight.done() == (fault == "write")
    assert log.wal.refusal is not None
    with pytest.raises(LogClosedError):
        log.wal.submit(append_run(7, 0, b"later"))
    await log.wal.close()
    await log.wal.close()
    assert len(log.failures) == 1
    assert files.sync_count == syncs

    again = await open_log(files)
    payloads = [payload for _, payload in again.contents()[7]]
    assert payloads[0] == b"before"
    await again.append(b"after")
    await lose_power(files, again, seed=3)
    third = await open_and_close(files)
    assert [payload for _, payload in third.contents()[7]] == [*payloads, b"after"]


async def test_what_recovery_told_is_durable_once_started(files: MemoryFileSystem) -> None:
    """A killed server leaves batches that were never synced in the memory of the system: they are made durable."""
    log = await open_log(files)
    await log.append(b"acked")
    files.stall()
    unsynced = log.submit(b"written, not synced")
    await asyncio.to_thread(files.stalled.wait)
    killed = files.copy()
    assert not unsynced.done()
    files.resume()
    await log.wal.close()

    again = await open_log(killed)
    assert [payload for _, payload in again.contents()[7]] == [b"acked", b"written, not synced"]
    await lose_power(killed, again, seed=5)
    third = await open_and_close(killed)

    assert third.contents() == again.contents()


async def test_close_hands_back_what_is_queued(files: MemoryFileSystem) -> None:
    before = {thread.ident for thread in threading.enumerate() if thread.name.startswith("millrace")}
    log = await open_log(files)
    futures = [log.submit(b"%d" % index) for index in range(20)]

    await log.wal.close()

    assert all(future.done() for future in futures)
    assert log.failures == []
    with pytest.raises(LogClosedError):
        log.wal.submit(append_run(7, 0, b"later"))
    assert {thread.ident for thread in threading.enumerate() if thread.name.startswith("millrace")} == before


async def test_close_may_be_cancelled_and_called_again(files: MemoryFileSystem) -> None:
    log = await open_log(files)
    files.stall()
    future = log.submit(b"slow")
    await asyncio.to_thread(files.stalled.wait)
    closing = asyncio.ensure_future(log.wal.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    files.resume()

    await log.wal.close()

    assert await future == 1


async def test_closing_proves_the_last_batch(files: MemoryFileSystem) -> None:
    """Behaviour 41: damage in the last append before a clean stop is damage, and not taken for a torn write."""
    log = await open_log(files)
    await log.append(b"first")
    await log.append(b"last")
    await log.wal.close()
    path = FOLDER / "wal-0000000000000001.log"
    files.flip_bit(path, 8 * files.content(path).index(b"last"))

    items, recovery = recover(files)

    assert [damage.runs for damage in recovery.report.damages] == [((7, 5, 4),)]
    assert len(items) == 3


async def test_closing_does_not_wait_for_space(files: MemoryFileSystem) -> None:
    log = await open_log(files)
    await until(lambda: log.wal.statistics().spare_files == 1)
    # The disk fills up after room was promised on it.
    promised = [log.submit(bytes(3000)) for _ in range(8)]
    files.capacity_bytes = 0
    await promised[0]

    await asyncio.wait_for(log.wal.close(), 10)

    assert [type(error) for error in log.failures] in ([LogClosedError], [])
    assert all(future.done() for future in promised) == (log.failures == [])


async def test_closing_before_starting_does_nothing(files: MemoryFileSystem) -> None:
    await create(files).wal.close()


async def test_a_stalled_disk_is_visible_and_waited_for(files: MemoryFileSystem) -> None:
    """Behaviour 45: acks wait, and health says so with the measured figure."""
    clock = ManualClock()
    log = await open_log(files, clock=clock)
    await until(lambda: log.wal.statistics().spare_files)  # whose syncs would stall, too
    assert log.wal.statistics().write_age_s == 0
    files.stall()
    future = log.submit(b"patience")
    await asyncio.to_thread(files.stalled.wait)
    clock.move(7.5)

    assert log.wal.statistics().write_age_s == 7.5
    assert not future.done()
    files.resume()
    await future
    await until(lambda: log.wal.statistics().write_age_s == 0)
    await log.wal.close()


async def test_a_disk_that_stalls_where_a_file_is_named_is_visible(files: MemoryFileSystem) -> None:
    """Behaviour 45: the name of the next log file is waited for like a batch."""
    clock = ManualClock()
    log = await open_log(files, clock=clock)
    await until(lambda: log.wal.statistics().spare_files)
    payload = bytes(SMALL.run_size_bytes_max // 2)
    while log.wal._active_room_bytes > len(payload):
        await log.append(payload)
    files.stall()
    future = log.submit(payload)
    writer = log.wal._writer
    assert writer is not None
    await until(lambda: writer.writing_since_s is not None, within_s=STALL_S_MAX / 2)
    clock.move(7.5)

    assert log.wal.statistics().write_age_s == 7.5
    files.resume()
    await future
    await until(lambda: log.wal.statistics().write_age_s == 0)
    await log.wal.close()


async def test_the_log_continues_after_what_a_checkpoint_knows(files: MemoryFileSystem) -> None:
    log = create(files)
    assert list(log.wal.recover()) == []
    await log.start(after_sequence=100)
    assert await log.append(b"a") == 101
    await log.wal.close()

    again = await open_log(files, from_sequence=101)

    assert again.damages == []
    assert [batch.sequence for batch in again.batches] == [101, 102]
    await again.wal.close()


async def test_the_log_of_somebody_else_is_refused(files: MemoryFileSystem) -> None:
    """Behaviour 47: another identity is refused, both named."""
    await open_and_close(files)
    stranger = LogOwner(2, uuid.UUID(int=5))
    wal = Wal(files, FOLDER, SMALL, clock=ManualClock(), owner=stranger)

    with pytest.raises(FolderVersionError, match=r"belongs to container 1 of server .*, not to container 2 of server"):
        list(wal.recover())


async def test_a_run_above_the_limit_is_our_own_fault(files: MemoryFileSystem) -> None:
    log = await open_log(files)
    with pytest.raises(ValueError, match="a run of 4097 bytes"):
        log.wal.submit(AppendRun(7, 0, bytes(4097), 1, 4097, 1))
    await log.wal.close()


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


async def test_it_works_on_a_real_disk(tmp_path: Path) -> None:
    durable: list[AppendRun] = []
    done = asyncio.Event()

    def on_durable(runs: list[AppendRun], sequence: int, wall_time_us: int) -> None:
        durable.extend(runs)
        if len(durable) == 200:
            done.set()

    def make() -> Wal:
        return Wal(
            OsFileSystem(),
            tmp_path / "wal",
            WalOptions(spare_files=1, file_size_bytes=MIB, run_size_bytes_max=64 * KIB, headroom_bytes=64 * KIB),
            clock=SystemClock(),
            owner=OWNER,
        )

    def on_failure(error: BaseException) -> None:
        pytest.fail(str(error))

    wal = make()
    assert list(wal.recover()) == []
    await wal.start(on_durable=on_durable, on_failure=on_failure)
    for index in range(200):
        wal.submit(append_run(7, index * 100, b"%0100d" % index))
    await asyncio.wait_for(done.wait(), 30)
    await wal.close()

    again = make()
    batches = list(again.recover())
    await again.start(on_durable=on_durable, on_failure=on_failure)
    await again.close()

    assert [run.offset for batch in batches for run in batch.runs] == [index * 100 for index in range(200)]  # type: ignore[union-attr]  # no damage


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
    assert read_newest(files, FOLDER).named in [FileUse(3, salt_of(files, 3)), FileUse(4, salt_of(files, 4))]
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
    open_newest(files, FOLDER, FileUse(2, salt_of(files, 2))).close()
    larger = replace(SMALL, file_size_bytes=64 * KIB)
    for _ in range(2):
        log = await open_log(files, larger)
        assert log.wal.report.damages == []
        await log.wal.close()
    assert {name: files.size(FOLDER / name) for name in log_names(files)} == {
        log_file_name(1): 64 * KIB, log_file_name(2): 16 * KIB,
    }  # fmt: skip
