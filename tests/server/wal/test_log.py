import asyncio
import threading
import uuid
from itertools import count
from pathlib import Path

import pytest

from millrace.server.errors import FolderVersionError, LogClosedError, LogFailedError, NoSpaceError
from millrace.server.host.clock import SystemClock
from millrace.server.host.files import OsFileSystem
from millrace.server.wal import Ending, LogOwner, RecoveredBatch, Wal, WalOptions
from millrace.wire.append_run import AppendRun
from millrace.wire.limits import FRAME_HEADER_SIZE_BYTES, KIB, MIB, RECORD_SIZE_BYTES_MAX
from tests.support.clock import ManualClock
from tests.support.files import STALL_S_MAX, MemoryFileSystem
from tests.support.waiting import until
from tests.support.wal import (
    FOLDER,
    OWNER,
    SMALL,
    OpenLog,
    append_run,
    control_run,
    create,
    open_and_close,
    open_log,
    recover,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.both_loops]


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


async def test_the_largest_record_finds_room_in_a_log_that_takes_no_more_appends(files: MemoryFileSystem) -> None:
    """Behaviour 44: what ends something, such as a commit of very many parts, is taken when appends are refused."""
    log = await open_log(files, WalOptions(file_size_bytes=40 * MIB, files_max=2, spare_files=1))
    for number in count():
        try:
            log.wal.submit(append_run(7, number * MIB, bytes(MIB)))
        except NoSpaceError:
            break

    log.wal.submit(control_run(bytes(RECORD_SIZE_BYTES_MAX - FRAME_HEADER_SIZE_BYTES)))
    log.wal.submit(control_run(b"one more"))
    await log.wal.close()

    again = await open_log(files, WalOptions(file_size_bytes=40 * MIB, files_max=2, spare_files=1))
    *_, largest, last = (run for batch in again.batches for run in batch.runs)
    assert len(largest.frames) == RECORD_SIZE_BYTES_MAX
    assert bytes(last.frames).endswith(b"one more")
    await again.wal.close()


async def test_a_run_above_the_limit_is_our_own_fault(files: MemoryFileSystem) -> None:
    log = await open_log(files)
    with pytest.raises(ValueError, match="a run of 4097 bytes"):
        log.wal.submit(AppendRun(7, 0, bytes(4097), 1, 4097, 1))
    await log.wal.close()


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

    recovered = [item for item in batches if isinstance(item, RecoveredBatch)]
    assert recovered == batches, "no damage"
    assert [run.offset for batch in recovered for run in batch.runs] == [index * 100 for index in range(200)]
