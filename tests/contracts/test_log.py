"""What `Log` promises, of each log that there is."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from millrace.model.checksum import Buffer
from millrace.server.errors import LogClosedError, LogFailedError, NoSpaceError, StoreUnavailableError
from millrace.server.wal import Damage, Log, ObjectWal, RecoveredBatch, Wal
from millrace.wire.append_run import AppendRun
from tests.support.clock import ManualClock
from tests.support.files import MemoryFileSystem
from tests.support.memory_log import LogMedium, MemoryLog
from tests.support.object_store import MemoryObjectStore
from tests.support.waiting import until
from tests.support.wal import FOLDER, OWNER, SMALL, append_run, control_run, payload_of

pytestmark = pytest.mark.asyncio


@dataclass
class Medium:
    """What logs are made on, and how it fails."""

    make: Callable[[], Log]
    fail: Callable[[], None]


class FailingStore(MemoryObjectStore):
    """A store that takes nothing any more, once it is told so."""

    is_failing = False

    async def create(self, key: str, pieces: Sequence[Buffer]) -> str:
        if self.is_failing:
            raise StoreUnavailableError("the store does not answer", subject=key)
        return await super().create(key, pieces)


def files() -> Medium:
    disk = MemoryFileSystem()

    def fail() -> None:
        # All that follow: the next one may be of a file that is being prepared, and is made again.
        disk.fail_syncs(1_000_000)

    return Medium(lambda: Wal(disk, FOLDER, SMALL, clock=ManualClock(), owner=OWNER), fail)


def memory() -> Medium:
    medium = LogMedium(capacity_bytes=SMALL.files_max * SMALL.file_size_bytes)

    def fail() -> None:
        medium.is_failing = True

    return Medium(lambda: MemoryLog(medium), fail)


def objects() -> Medium:
    store = FailingStore()
    epochs: list[int] = []

    def make() -> Log:
        epochs.append(len(epochs) + 1)
        return ObjectWal(
            store,
            "c0001/log/",
            replace(SMALL, puts_per_s_max=0.0),
            epochs=epochs,
            from_sequence=1,
            clock=ManualClock(),
            owner=OWNER,
        )

    def fail() -> None:
        store.is_failing = True

    return Medium(make, fail)


@pytest.fixture(params=[files, memory, objects])
def medium(request: pytest.FixtureRequest) -> Medium:
    made: Medium = request.param()
    return made


@dataclass
class Opened:
    log: Log
    recovered: list[RecoveredBatch | Damage] = field(default_factory=list)
    durable: list[tuple[int, list[bytes]]] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    @property
    def payloads(self) -> list[bytes]:
        """Payloads of what was recovered, in order."""
        batches = [item for item in self.recovered if isinstance(item, RecoveredBatch)]
        return [payload_of(run) for batch in batches for run in batch.runs]

    def on_durable(self, runs: list[AppendRun], sequence: int, wall_time_us: int) -> None:
        self.durable.append((sequence, [payload_of(run) for run in runs]))

    async def append(self, *payloads: bytes) -> None:
        """Submit runs and wait until they are durable."""
        count = self.count + len(payloads)
        for payload in payloads:
            self.log.submit(append_run(7, 0, payload))
        await until(lambda: self.count == count)

    @property
    def count(self) -> int:
        return sum(len(payloads) for _, payloads in self.durable)


async def opened(medium: Medium, *, from_sequence: int = 0, after_sequence: int = 0) -> Opened:
    found = Opened(medium.make())
    found.recovered = await asyncio.to_thread(lambda: list(found.log.recover(from_sequence)))
    await found.log.start(on_durable=found.on_durable, on_failure=found.failures.append, after_sequence=after_sequence)
    return found


async def test_what_is_handed_back_is_recovered_in_the_order_submitted(medium: Medium) -> None:
    one = await opened(medium)
    assert one.recovered == []
    payloads = [b"run %d" % number for number in range(10)]
    await one.append(*payloads[:6])
    await one.append(*payloads[6:])
    assert [payload for _, batch in one.durable for payload in batch] == payloads
    sequences = [sequence for sequence, _ in one.durable]
    assert sequences == list(range(1, len(sequences) + 1))
    assert one.log.durable_sequence == sequences[-1]
    await one.log.close()

    two = await opened(medium)
    assert two.payloads == payloads
    assert two.log.report.first_sequence == 1
    assert two.log.report.last_sequence >= sequences[-1]
    assert all(isinstance(item.place, str) and item.place for item in two.recovered)
    await two.log.close()


async def test_new_batches_get_higher_sequences_than_the_caller_knows(medium: Medium) -> None:
    one = await opened(medium, after_sequence=100)
    await one.append(b"a")
    assert one.durable == [(101, [b"a"])]
    await one.log.close()


async def test_a_log_that_starts_later_than_needed_is_damaged(medium: Medium) -> None:
    one = await opened(medium, after_sequence=10)
    await one.append(b"a")
    await one.log.close()
    two = await opened(medium, from_sequence=5)
    (damage,) = two.log.report.damages
    assert two.recovered[0] == damage
    assert (damage.first_sequence, damage.last_sequence) == (5, 10)
    assert two.payloads == [b"a"]
    await two.log.close()


async def test_a_full_log_takes_records_until_it_is_recycled(medium: Medium) -> None:
    """Behaviour 44."""
    one = await opened(medium)
    size = one.log.run_size_bytes_max // 2
    for _ in range(one.log.capacity_bytes // size):
        try:
            await one.append(bytes(size))
        except NoSpaceError:
            break
    await until(lambda: one.log.refusal is not None)
    assert one.log.refusal
    assert 0.5 < one.log.fullness <= 1.0
    needed_from = one.log.durable_sequence // 2
    assert 0 < one.log.reclaimable_bytes(needed_from) < one.log.reclaimable_bytes(one.log.durable_sequence)
    assert one.log.reclaimable_bytes(one.log.durable_sequence) <= one.log.capacity_bytes
    assert not one.log.reclaimable_bytes(0)
    count = one.count + 1
    one.log.submit(control_run(b"truncate"))
    await until(lambda: one.count == count)

    one.log.recycle(one.log.durable_sequence)
    await until(lambda: one.log.refusal is None)
    assert one.log.fullness < 0.6
    await one.append(bytes(size))
    await one.log.close()


async def test_bytes_are_counted_until_they_are_durable(medium: Medium) -> None:
    one = await opened(medium)
    run = append_run(7, 0, b"x" * 100)
    one.log.submit(run)
    assert one.log.queued_bytes == len(run.frames)
    await until(lambda: one.count == 1)
    assert one.log.queued_bytes == 0
    statistics = one.log.statistics()
    assert (statistics.durable_sequence, statistics.batch_count, statistics.refusal) == (1, 1, None)
    with pytest.raises(ValueError, match="the largest is"):
        one.log.submit(append_run(7, 0, bytes(one.log.run_size_bytes_max)))
    await one.log.close()


async def test_closing_hands_back_what_is_queued_and_then_refuses(medium: Medium) -> None:
    await medium.make().close()
    one = await opened(medium)
    one.log.submit(append_run(7, 0, b"last"))
    await one.log.close()
    await one.log.close()
    assert [payloads for _, payloads in one.durable] == [[b"last"]]
    assert one.log.refusal is not None
    with pytest.raises(LogClosedError):
        one.log.submit(append_run(7, 0, b"too late"))
    two = await opened(medium)
    assert two.payloads == [b"last"]
    await two.log.close()


async def test_a_failure_is_told_once_and_ends_the_log(medium: Medium) -> None:
    """Section 2 of the design, 4: a failed sync is final."""
    one = await opened(medium)
    await one.append(b"a")
    medium.fail()
    for _ in range(3):
        one.log.submit(append_run(7, 0, b"b"))
    await until(lambda: bool(one.failures))
    assert isinstance(one.failures[0], LogFailedError)
    assert one.count == 1
    with pytest.raises(LogClosedError):
        one.log.submit(append_run(7, 0, b"c"))
    await asyncio.wait_for(one.log.close(), 10)
    assert len(one.failures) == 1
