"""What the event loop writes itself, and when it leaves that to the log thread."""

import asyncio
from dataclasses import replace

import pytest

from millrace.server.errors import LogClosedError, LogFailedError
from millrace.server.wal.inline_sync import PAUSE_FACTOR, SLOW_S, InlineSyncPolicy
from millrace.wire.limits import KIB
from tests.support.files import MemoryFileSystem
from tests.support.waiting import until
from tests.support.wal import SMALL, OpenLog, control_run, create, open_log
from tests.support.watched_files import WatchedFiles

pytestmark = pytest.mark.both_loops

LONE = replace(SMALL, lone_size_bytes_max=KIB)


@pytest.fixture
def files() -> WatchedFiles:
    return WatchedFiles()


async def opened(files: WatchedFiles) -> OpenLog:
    """Return a log whose thread sleeps, whose spare is ready, and that no batch was written to."""
    log = await open_log(files, LONE, clock=files.clock)
    await asleep(log)
    await until(lambda: log.wal.statistics().spare_files)
    files.taken()
    return log


async def asleep(log: OpenLog) -> None:
    assert log.wal._writer is not None
    writer = log.wal._writer
    await until(lambda: writer._is_idle)


@pytest.mark.asyncio
async def test_a_lone_run_is_written_in_the_loop_and_survives(files: WatchedFiles) -> None:
    """Behaviour 5: an ack is for synced bytes only, whoever synced them."""
    log = await opened(files)
    assert [await log.append(b"%d" % number) for number in range(3)] == [1, 2, 3]
    assert files.taken() == [True] * 3
    assert log.wal.queued_bytes == 0
    files.crash(1)
    await log.wal.close()

    again = await open_log(files, LONE, clock=files.clock)

    assert again.contents()[7] == [(0, b"0"), (1, b"1"), (2, b"2")]
    await again.wal.close()


@pytest.mark.asyncio
async def test_it_is_not_durable_before_the_turn_of_the_loop_ends(files: WatchedFiles) -> None:
    log = await opened(files)
    future = log.submit(b"a")
    assert files.taken() == []
    assert log.wal.queued_bytes
    assert await future == 1
    await log.wal.close()


@pytest.mark.asyncio
async def test_runs_of_one_turn_are_one_batch_of_the_thread(files: WatchedFiles) -> None:
    log = await opened(files)
    futures = [log.submit(b"a"), log.submit(b"b"), log.submit(b"c")]
    sequences = await asyncio.gather(*futures)
    assert sequences == sorted(sequences)
    assert not any(files.taken())
    await log.wal.close()
    assert [len(runs) for runs, _, _ in log.durable] in ([3], [1, 2], [2, 1], [1, 1, 1])


@pytest.mark.asyncio
async def test_what_belongs_together_in_one_turn_is_one_batch_of_the_loop(files: WatchedFiles) -> None:
    log = await opened(files)
    for _ in range(2):  # after such a batch, too
        futures = [log.submit_run(run, is_followed=True) for run in (control_run(b"begin"), control_run(b"commit"))]
        await asyncio.gather(*futures)
    assert [len(runs) for runs, _, _ in log.durable] == [2, 2]
    assert files.taken() == [True, True]
    await log.wal.close()


@pytest.mark.asyncio
async def test_what_belongs_together_is_the_threads_if_it_is_large(files: WatchedFiles) -> None:
    log = await opened(files)
    half = bytes(LONE.lone_size_bytes_max // 2)
    await asyncio.gather(*[log.submit_run(control_run(half), is_followed=True) for _ in range(2)])
    assert [len(runs) for runs, _, _ in log.durable] == [2]
    assert files.taken() == [False]
    await log.wal.close()


@pytest.mark.asyncio
async def test_what_peers_want_written_in_one_turn_is_the_threads(files: WatchedFiles) -> None:
    log = await opened(files)
    futures = [log.submit_run(control_run(b"of one"), is_followed=True)]
    log.wal.share_loop()
    futures.append(log.submit_run(control_run(b"of another"), is_followed=True))
    await asyncio.gather(*futures)
    assert files.taken() == [False]
    await log.wal.close()


@pytest.mark.asyncio
async def test_after_a_batch_of_several_the_thread_writes_one_more(files: WatchedFiles) -> None:
    log = await opened(files)
    files.stall()
    large = log.submit(bytes(LONE.lone_size_bytes_max))  # too large for the loop, so it is the thread that stalls
    await asyncio.to_thread(files.stalled.wait)
    second, third = log.submit(b"b"), log.submit(b"c")
    files.resume()
    await asyncio.gather(large, second, third)
    assert [len(runs) for runs, _, _ in log.durable[-2:]] == [1, 2]
    await asleep(log)
    files.taken()
    await log.append(b"d")
    await asleep(log)
    await log.append(b"e")
    assert files.taken() == [False, True]
    await log.wal.close()


@pytest.mark.asyncio
async def test_a_large_run_is_the_threads(files: WatchedFiles) -> None:
    log = await opened(files)
    await log.append(bytes(LONE.lone_size_bytes_max))
    assert files.taken() == [False]
    await log.wal.close()


@pytest.mark.asyncio
async def test_while_the_loop_serves_others_the_thread_writes(files: WatchedFiles) -> None:
    log = await opened(files)
    log.wal.share_loop()
    await log.append(b"a")
    await asleep(log)
    await log.append(b"b")
    assert files.taken() == [False, True]
    await log.wal.close()


@pytest.mark.asyncio
async def test_after_a_slow_sync_the_thread_writes_for_a_while_in_proportion(files: WatchedFiles) -> None:
    log = await opened(files)
    files.sync_s = 10 * SLOW_S
    await log.append(b"holds up the loop once")
    await log.append(b"b")
    await asleep(log)
    files.sync_s = 0.0
    files.clock.move(PAUSE_FACTOR * 10 * SLOW_S - 0.001)
    await log.append(b"c")
    await asleep(log)
    files.clock.move(0.001)
    await log.append(b"d")
    assert files.taken() == [True, False, False, True]
    await log.wal.close()


@pytest.mark.asyncio
async def test_where_a_file_is_full_the_thread_takes_the_next(files: WatchedFiles) -> None:
    log = await opened(files)
    payload = bytes(KIB - 64)
    for _ in range(2 * LONE.file_size_bytes // KIB):
        await log.append(payload)
        await asleep(log)
    assert set(files.taken()) == {True, False}
    assert log.wal.statistics().full_files >= 2
    await log.wal.close()

    again = await open_log(files, LONE, clock=files.clock)

    assert len(again.contents()[7]) == 2 * LONE.file_size_bytes // KIB
    await again.wal.close()


@pytest.mark.asyncio
async def test_a_sync_that_fails_in_the_loop_ends_the_log(files: WatchedFiles) -> None:
    """Behaviour 43: a failed sync is final, and what was in it is of unknown outcome."""
    log = await opened(files)
    files.fail_syncs()
    future = log.submit(b"a")
    await until(lambda: log.failures)  # at the end of this turn; a machine that is busy leaves the batch to the thread
    assert isinstance(log.failures[0], LogFailedError)
    assert not future.done()
    with pytest.raises(LogClosedError):
        _ = log.submit(b"b")
    await log.wal.close()
    assert files.taken() == []
    assert log.durable == []


@pytest.mark.asyncio
async def test_closing_writes_what_the_loop_was_about_to_write(files: WatchedFiles) -> None:
    log = await opened(files)
    future = log.submit(b"a")
    await log.wal.close()
    assert await future == 1


@pytest.mark.asyncio
async def test_a_record_of_a_decision_is_written_in_the_loop_as_well(files: WatchedFiles) -> None:
    log = await opened(files)
    await log.submit_run(control_run(b"truncate"))
    assert files.taken() == [True]
    await log.wal.close()


@pytest.mark.asyncio
async def test_it_can_be_switched_off(files: WatchedFiles) -> None:
    log = await open_log(files, SMALL, clock=files.clock)
    await asleep(log)
    files.taken()
    await log.append(b"a")
    assert files.taken() == [False]
    await log.wal.close()


def test_a_slow_sync_never_shortens_the_pause_after_a_slower_one() -> None:
    policy = InlineSyncPolicy()
    policy.wrote(is_alone=True, duration_s=1.0, now_s=10.0)
    policy.wrote(is_alone=True, duration_s=2 * SLOW_S, now_s=11.0)
    assert not policy.allows(10.0 + PAUSE_FACTOR - 0.1)
    assert policy.allows(10.0 + PAUSE_FACTOR)


def test_quick_syncs_pause_nothing() -> None:
    policy = InlineSyncPolicy()
    policy.wrote(is_alone=True, duration_s=SLOW_S, now_s=10.0)
    assert policy.allows(10.0)


def test_nothing_is_written_before_the_log_is_open() -> None:
    assert create(MemoryFileSystem(), LONE).wal.refusal == "the log is closed"
