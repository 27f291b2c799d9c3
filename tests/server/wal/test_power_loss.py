"""The log against power losses, kills and failing syncs at any moment; every history is told by its seed."""

import asyncio
import contextlib
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.server.errors import LogClosedError, LogFailedError, NoSpaceError
from millrace.wire.limits import KIB
from tests.support.files import MemoryFileSystem
from tests.support.waiting import until
from tests.support.wal import SMALL, OpenLog, open_log, payload_of

pytestmark = pytest.mark.asyncio


class History:
    """One segment through many lives of the log: what was acknowledged must be there, in the order submitted."""

    options = SMALL
    deaths: tuple[str, ...] = ("power", "power", "kill", "sync", "close")
    burst_sizes: tuple[int, ...] = (1, 2, 3, 4, 5, 6)

    def __init__(self, seed: int) -> None:
        self.choices = random.Random(seed)
        self.files = MemoryFileSystem()
        # What was found in the last recovery: told to readers, so it must stay.
        self.told: list[bytes] = []
        self.acked: list[bytes] = []
        self.submitted: list[bytes] = []
        self.count = 0
        self.recycled_to = 0

    async def live(self) -> None:
        """Open, check, append in bursts, and die in one of several ways."""
        from_sequence = self.recycled_to + 1 if self.recycled_to else 0
        log = await open_log(self.files, self.options, from_sequence=from_sequence)
        self.check(log)
        death = self.choices.choice(self.deaths)
        dies_after = self.choices.randint(0, 12)
        for burst in range(self.choices.randint(1, 12)):
            if not await self.burst(log):
                break
            if burst == dies_after:
                break
        await self.die(log, death)

    async def burst(self, log: OpenLog) -> bool:
        futures = []
        for _ in range(self.choices.choice(self.burst_sizes)):
            payload = b"%08d" % self.count + bytes(self.choices.choice((0, 10, 700, 1500, 3000)))
            try:
                futures.append((payload, log.submit(payload)))
            except NoSpaceError:
                break
            self.count += 1
            self.submitted.append(payload)
        for payload, future in futures:
            sequence = await future
            self.acked.append(payload)
        if futures and self.choices.random() < 0.5:
            self.recycle(log, sequence - 1)
        return True

    def recycle(self, log: OpenLog, sequence: int) -> None:
        """Do as if everything up to that sequence were in tier 2."""
        log.wal.recycle(sequence)
        self.recycled_to = sequence
        durable = [run for runs, number, _ in log.durable if number <= sequence for run in runs]
        recovered = [run for batch in log.batches if batch.sequence <= sequence for run in batch.runs]
        done = {bytes(run.frames[64:]) for run in (*recovered, *durable)}
        for payloads in (self.told, self.acked, self.submitted):
            payloads[:] = [payload for payload in payloads if payload not in done]

    async def die(self, log: OpenLog, death: str) -> None:
        if death == "close":
            await log.wal.close()
            return
        self.files.stall()
        pending = []
        with contextlib.suppress(NoSpaceError):
            for _ in range(self.choices.randint(0, 5)):
                payload = b"%08d" % self.count + bytes(self.choices.choice((0, 700, 3000)))
                pending.append(log.submit(payload))
                self.count += 1
                self.submitted.append(payload)
        if pending:
            await asyncio.to_thread(self.files.stalled.wait)
        if death == "power":
            self.files.crash(self.choices.randrange(2**32))
            await log.wal.close()
        elif death == "kill":
            dead, self.files = self.files, self.files.copy()
            dead.crash(0)
            await log.wal.close()
        else:
            self.files.fail_syncs(self.choices.randint(1, 2))
            self.files.resume()
            if pending:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(pending[0]), 0.02)
            await log.wal.close()
            self.files.fail_syncs(0)
        with pytest.raises(LogClosedError):
            await log.append(b"too late")

    def check(self, log: OpenLog) -> None:
        found = [payload for _, payload in log.contents().get(7, [])]
        assert log.wal.report.damages == []
        expected = [payload for payload in self.submitted if payload in set(found)]
        assert [payload for payload in found if payload in set(self.submitted)] == expected
        missing = [payload for payload in (*self.told, *self.acked) if payload not in set(found)]
        assert missing == []
        # What was submitted is there up to some point, and nothing after it.
        assert expected == self.submitted[: len(expected)]
        self.submitted = list(expected)
        self.told = list(expected)
        self.acked = []


@pytest.mark.parametrize("seed", range(60))
async def test_nothing_acknowledged_or_told_is_ever_lost(seed: int) -> None:
    """Behaviour 39, 40, 43: through ten lives, each ended by a power loss, a kill, a failing sync, or in peace."""
    print(f"seed={seed}")
    history = History(seed)
    for _ in range(10):
        await history.live()


class HistoryOfHoles(History):
    """New files are holes: what the disk does not hold of them yet reads as zeros."""

    options = replace(SMALL, zero_fill=False)


@pytest.mark.parametrize("seed", range(20))
async def test_nothing_is_lost_where_files_take_disk_as_they_are_written(seed: int) -> None:
    """Behaviour 39, 40, 43: the same, without files that are filled ahead."""
    print(f"seed={seed}")
    history = HistoryOfHoles(seed)
    for _ in range(10):
        await history.live()


class LoneHistory(History):
    """Most appends are alone, so the loop writes them; each death but closing is in the middle of such a sync.

    The loop cannot be stopped there. So the disk is copied, and the next life is on the copy.
    """

    options = replace(SMALL, lone_size_bytes_max=2 * KIB)
    deaths = ("power", "power", "kill", "refused", "refused and power", "close")
    burst_sizes = (1, 1, 1, 1, 4)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.cut_syncs = 0

    async def die(self, log: OpenLog, death: str) -> None:
        files = self.files
        copy: MemoryFileSystem | None = None
        acked: list[bytes] = []
        is_cut = death == "close"

        def cut(path: Path) -> None:
            nonlocal copy, acked, is_cut
            if is_cut or threading.current_thread() is not threading.main_thread():
                return
            is_cut = True
            self.cut_syncs += 1
            acked = [payload_of(run) for runs, _, _ in log.durable for run in runs]
            if death.startswith("refused"):
                files.fail_syncs_until(lambda: log.failures)
            else:
                copy = files.copy()

        files.before_sync = cut
        with contextlib.suppress(NoSpaceError):
            while not is_cut:
                await self.append_alone(log)
        if is_cut and death.startswith("refused"):
            assert [type(error) for error in log.failures] == [LogFailedError]
            assert acked == [payload_of(run) for runs, _, _ in log.durable for run in runs]
        await log.wal.close()
        files.before_sync = lambda path: None
        if copy is not None:
            self.files = copy
            self.acked = [payload for payload in acked if payload in set(self.submitted)]
        if death.endswith("power"):
            self.files.crash(self.choices.randrange(2**32))

    async def append_alone(self, log: OpenLog) -> None:
        """Append while the log thread sleeps, and wait until it is acknowledged or the log has failed."""
        writer = log.wal._writer
        assert writer is not None
        await until(lambda: writer._is_idle)
        payload = b"%08d" % self.count + bytes(self.choices.choice((0, 10, 700, 1500)))
        future = log.submit(payload)
        self.count += 1
        self.submitted.append(payload)
        await until(lambda: future.done() or log.failures)
        if future.done():
            self.acked.append(payload)


@pytest.mark.both_loops
@pytest.mark.parametrize("seed", range(30))
async def test_nothing_is_lost_that_the_loop_wrote(seed: int) -> None:
    """Behaviours 39, 40, 43: the same, cut in syncs of the event loop: torn, lost, and refused ones."""
    print(f"seed={seed}")
    history = LoneHistory(seed)
    for _ in range(10):
        await history.live()
    assert history.cut_syncs
