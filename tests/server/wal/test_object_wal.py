"""The log in an object store: order, fences, and what is left of it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from millrace.model.checksum import Buffer
from millrace.server.errors import (
    FolderVersionError,
    LogClosedError,
    LogFailedError,
    NoSpaceError,
    StorageError,
    StoreUnavailableError,
)
from millrace.server.object_store import ObjectInfo, ObjectStore, RetryingStore, StoredObject
from millrace.server.object_store.hedging import HEDGE_S_MIN, REQUESTS_PER_HEDGE
from millrace.server.object_store.room import PAUSE_S_MAX
from millrace.server.wal import AcceptedLoss, Damage, LogOwner, ObjectRecovery, ObjectWal, RecoveredBatch, WalOptions
from millrace.server.wal.log_objects import LogPoint, parse_log_name
from millrace.server.wal.object_recovery import READS_COUNT_MAX
from millrace.server.wal.pacing import WINDOW_COUNT
from millrace.wire.append_run import AppendRun
from tests.support.clock import ManualClock
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.object_store import MemoryObjectStore
from tests.support.waiting import until
from tests.support.wal import OWNER, SMALL, append_run, control_run, payload_of

pytestmark = pytest.mark.asyncio

PREFIX = "c0001/log/"
OPTIONS = replace(SMALL, puts_per_s_max=0.0)


class GatedStore(MemoryObjectStore):
    """A store in which puts wait until a test lets them happen, and nothing is deleted while it does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.is_gated = False
        self.waiting: dict[str, asyncio.Event] = {}
        self.is_refusing_deletes = False
        self.reads_count = self.reads_count_max = 0

    async def create(self, key: str, pieces: Sequence[Buffer]) -> str:
        content = b"".join(pieces)
        if self.is_gated and len(content) > 64:
            gate = self.waiting[key] = asyncio.Event()
            await gate.wait()
        return await super().create(key, [content])

    async def get(self, key: str) -> StoredObject:
        self.reads_count += 1
        self.reads_count_max = max(self.reads_count_max, self.reads_count)
        try:
            return await super().get(key)
        finally:
            self.reads_count -= 1

    async def delete(self, keys: Sequence[str]) -> None:
        if self.is_refusing_deletes:
            raise StoreUnavailableError("the store does not answer", subject=keys[0])
        await super().delete(keys)

    def land(self, sequence: int) -> None:
        """Let the put of a batch happen."""
        (key,) = (key for key in self.waiting if key.endswith(f"{sequence:016d}"))
        self.waiting.pop(key).set()

    @property
    def points(self) -> list[tuple[int, int]]:
        """Epoch and sequence of all objects."""
        names = [parse_log_name(key.removeprefix(PREFIX)) for key in self.objects]
        return [(point.epoch, point.sequence) for point in names if point is not None]


@dataclass
class Opened:
    log: ObjectWal
    recovered: list[RecoveredBatch | Damage]
    durable: list[tuple[int, list[bytes]]] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    @property
    def payloads(self) -> list[bytes]:
        return [payload_of(run) for item in self.recovered if isinstance(item, RecoveredBatch) for run in item.runs]

    @property
    def damages(self) -> list[Damage]:
        return [item for item in self.recovered if isinstance(item, Damage)]

    @property
    def acked(self) -> list[bytes]:
        return [payload for _, payloads in self.durable for payload in payloads]

    def on_durable(self, runs: list[AppendRun], sequence: int, wall_time_us: int) -> None:
        self.durable.append((sequence, [payload_of(run) for run in runs]))

    def submit(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.log.submit(append_run(7, 0, payload))

    async def append(self, *payloads: bytes) -> None:
        """Append each payload as a batch of its own."""
        for payload in payloads:
            await self.append_batch(payload)

    async def append_batch(self, *payloads: bytes) -> None:
        """Append payloads together."""
        count = len(self.acked) + len(payloads)
        self.submit(*payloads)
        await until(lambda: len(self.acked) == count)


async def opened(
    store: ObjectStore,
    *epochs: int,
    from_sequence: int = 1,
    needs_from: int = 0,
    accepted: AcceptedLoss | None = None,
    options: WalOptions = OPTIONS,
    clock: ManualClock | None = None,
    owner: LogOwner = OWNER,
) -> Opened:
    """Recover and start a log as the owner of the last of these epochs."""
    log = ObjectWal(
        store, PREFIX, options, epochs=epochs, from_sequence=from_sequence, clock=clock or ManualClock(), owner=owner
    )
    recovered = [item async for item in log.read(needs_from, accepted=accepted or AcceptedLoss())]
    found = Opened(log, recovered)
    await log.start(on_durable=found.on_durable, on_failure=found.failures.append)
    return found


async def exhausted(log: ObjectWal) -> list[RecoveredBatch | Damage]:
    """Recover a log, and return what it holds."""
    return [item async for item in log.read()]


async def put_begun(store: GatedStore, count: int) -> None:
    """Return when so many puts wait."""
    await until(lambda: len(store.waiting) == count)


@pytest.fixture
def store() -> GatedStore:
    return GatedStore()


async def test_batches_are_handed_back_in_order_whichever_is_stored_first(store: GatedStore) -> None:
    one = await opened(store, 1)
    store.is_gated = True
    for number in range(3):
        one.submit(b"%d" % number)
        await put_begun(store, number + 1)
    store.land(3)
    store.land(2)
    await until(lambda: (1, 2) in store.points)
    assert one.acked == []
    assert one.log.statistics().puts_in_flight == 3
    store.land(1)
    await until(lambda: len(one.durable) == 3)
    assert one.durable == [(1, [b"0"]), (2, [b"1"]), (3, [b"2"])]
    await one.log.close()


async def test_only_so_many_puts_are_under_way_and_the_rest_is_one_batch(store: GatedStore) -> None:
    one = await opened(store, 1)
    store.is_gated = True
    for number in range(WINDOW_COUNT):
        one.submit(b"%d" % number)
        await put_begun(store, number + 1)
    one.submit(b"a", b"b")
    one.submit(b"c")
    store.land(1)
    await until(lambda: len(store.waiting) == WINDOW_COUNT)
    for sequence in range(2, WINDOW_COUNT + 2):
        store.land(sequence)
    await until(lambda: len(one.durable) == WINDOW_COUNT + 1)
    assert one.durable[-1] == (WINDOW_COUNT + 1, [b"a", b"b", b"c"])
    await one.log.close()


async def test_runs_of_one_turn_are_one_batch(store: GatedStore) -> None:
    one = await opened(store, 1)
    one.submit(b"a", b"b", b"c")
    await until(lambda: len(one.acked) == 3)
    assert one.durable == [(1, [b"a", b"b", b"c"])]
    await one.log.close()


async def test_a_busy_log_puts_no_more_often_than_it_may(store: GatedStore) -> None:
    """Behaviour 95: the cost of a log has a bound."""
    clock = ManualClock()
    one = await opened(store, 1, options=replace(OPTIONS, puts_per_s_max=5.0), clock=clock)
    await one.append(*[b"%d" % number for number in range(5)])
    one.submit(b"x")
    for _ in range(20):
        await asyncio.sleep(0)
    one.submit(b"y")
    assert len(one.durable) == 5
    await clock.advance(0.19)
    assert len(one.durable) == 5
    await clock.advance(0.02)
    await until(lambda: len(one.durable) == 6)
    assert one.durable[-1] == (6, [b"x", b"y"])
    await one.log.close()


async def test_closing_waits_for_no_pace(store: GatedStore) -> None:
    one = await opened(store, 1, options=replace(OPTIONS, puts_per_s_max=1.0))
    one.submit(b"a")
    await until(lambda: one.acked == [b"a"])
    one.submit(b"b")
    await one.log.close()
    assert one.acked == [b"a", b"b"]


async def test_the_next_owner_has_all_that_was_acknowledged_and_the_one_before_gets_no_more(store: GatedStore) -> None:
    """Behaviour 90: a put that was under way when another one took over is never acknowledged."""
    one = await opened(store, 1)
    await one.append(b"a", b"b")
    store.is_gated = True
    one.submit(b"late")
    await until(lambda: len(store.waiting) == 1)

    two = await opened(store, 1, 2)
    assert two.payloads == [b"a", b"b"]
    assert two.log.durable_sequence == 2
    store.is_gated = False
    await two.append(b"c")
    assert two.durable == [(3, [b"c"])]

    store.land(3)
    await until(lambda: bool(one.failures))
    assert isinstance(one.failures[0], LogFailedError)
    assert "epoch 1 was ended at batch 3" in str(one.failures[0])
    assert one.acked == [b"a", b"b"]
    with pytest.raises(LogClosedError):
        one.submit(b"d")
    await one.log.close()
    await two.log.close()

    three = await opened(store, 1, 2, 3)
    assert three.payloads == [b"a", b"b", b"c"]
    await three.log.close()


async def test_what_was_stored_after_a_gap_is_no_part_of_the_log(store: GatedStore) -> None:
    one = await opened(store, 1)
    await one.append(b"a")
    store.is_gated = True
    for number in range(3):
        one.submit(b"late %d" % number)
        await put_begun(store, number + 1)
    store.land(3)
    store.land(4)
    await until(lambda: {(1, 3), (1, 4)} <= set(store.points))

    two = await opened(store, 1, 2)
    assert two.payloads == [b"a"]
    assert two.damages == []
    # They are deleted in the background; the fence stays.
    await until(lambda: store.points == [(1, 1), (1, 2)])
    store.land(2)
    await until(lambda: bool(one.failures))
    assert one.acked == [b"a"]
    await one.log.close()
    await two.log.close()


async def test_a_batch_that_is_stored_before_the_fence_is_part_of_the_log(store: GatedStore) -> None:
    one = await opened(store, 1)
    await one.append(b"a")
    store.is_gated = True
    one.submit(b"b")
    await until(lambda: len(store.waiting) == 1)

    class Overtaken(GatedStore):
        """The store as the second owner sees it: the batch is stored after it has listed."""

        async def create(self, key: str, pieces: Sequence[Buffer]) -> str:
            if store.waiting:
                store.land(2)
                await until(lambda: (1, 2) in store.points)
            return await super().create(key, pieces)

    view = Overtaken()
    view.objects = store.objects
    two = await opened(view, 1, 2)
    assert two.payloads == [b"a", b"b"]
    assert (1, 3) in store.points
    await until(lambda: one.acked == [b"a", b"b"])
    await one.log.close()
    await two.log.close()


async def test_an_owner_that_died_before_it_had_closed_an_epoch_leaves_that_to_the_next(store: GatedStore) -> None:
    one = await opened(store, 1)
    await one.append(b"a")
    # Epochs 2 and 3 were claimed, and nothing else.
    four = await opened(store, 1, 2, 3, 4)
    assert four.payloads == [b"a"]
    await four.append(b"b")
    assert four.durable == [(2, [b"b"])]
    assert {(1, 2), (2, 2), (3, 2)} <= set(store.points)
    one.submit(b"late")
    await until(lambda: bool(one.failures))
    await one.log.close()
    await four.log.close()


async def test_a_log_is_read_again_after_any_number_of_owners(store: GatedStore) -> None:
    written: list[bytes] = []
    for epoch in range(1, 6):
        log = await opened(store, *range(1, epoch + 1))
        assert log.payloads == written
        for number in range(epoch):
            written.append(b"%d of %d" % (number, epoch))
            await log.append(written[-1])
        await log.log.close()
    last = await opened(store, *range(1, 7), needs_from=5)
    assert last.payloads == written[4:]
    await last.log.close()


async def test_a_start_takes_place_after_any_number_of_claims_that_came_to_nothing(store: GatedStore) -> None:
    """A server that crashes in each start, for hours, must be able to start once that is mended."""
    one = await opened(store, 1)
    await one.append(b"a")
    await one.log.close()
    last = await opened(store, *range(1, 3001))
    assert last.payloads == [b"a"]
    await last.append(b"b")
    await last.log.close()
    next_one = await opened(store, *range(1, 3002))
    assert next_one.payloads == [b"a", b"b"]
    await next_one.log.close()


async def test_an_epoch_that_was_begun_is_not_begun_again(store: GatedStore) -> None:
    one = await opened(store, 1)
    await one.append(b"a")
    await one.log.close()
    with pytest.raises(StorageError, match="epoch 1 was begun before"):
        await opened(store, 1)


async def test_objects_that_are_missing_are_damage(store: GatedStore) -> None:
    """Behaviour 41: a rule of the bucket that deletes what is old deletes what was acknowledged."""
    one = await opened(store, 1)
    await one.append(*[b"%d" % number for number in range(12)])
    await one.log.close()
    for sequence in (4, 5):
        del store.objects[PREFIX + LogPoint(1, sequence).name]

    two = await opened(store, 1, 2)
    (damage,) = two.damages
    assert (damage.first_sequence, damage.last_sequence) == (4, 5)
    assert not damage.is_complete
    assert "missing" in damage.reason
    assert two.payloads == [b"%d" % number for number in range(12) if number not in {3, 4}]
    await two.log.close()

    accepted = await opened(store, 1, 2, 3, accepted=AcceptedLoss(5, 2))
    assert accepted.damages == []
    assert len(accepted.payloads) == 10
    await accepted.log.close()


async def test_objects_that_are_missing_before_a_fence_are_damage(store: GatedStore) -> None:
    one = await opened(store, 1)
    await one.append(b"a", b"b", b"c")
    await one.log.close()
    two = await opened(store, 1, 2)
    await two.append(b"d")
    await two.log.close()
    del store.objects[PREFIX + LogPoint(1, 3).name]

    three = await opened(store, 1, 2, 3)
    (damage,) = three.damages
    assert (damage.first_sequence, damage.last_sequence) == (3, 3)
    assert three.payloads == [b"a", b"b", b"d"]
    await three.log.close()


async def test_of_a_damaged_object_what_is_intact_is_kept_and_what_is_not_is_named(store: GatedStore) -> None:
    one = await opened(store, 1)
    one.log.submit(append_run(7, 0, b"kept"))
    one.log.submit(append_run(8, 40, b"lost"))
    await until(lambda: len(one.acked) == 2)
    await one.append(b"after")
    await one.log.close()
    key = PREFIX + LogPoint(1, 1).name
    store.objects[key] = store.objects[key].replace(b"lost", b"losT")

    two = await opened(store, 1, 2)
    (damage,) = two.damages
    assert (damage.runs, damage.is_complete) == (((8, 40, 4),), True)
    assert two.payloads == [b"kept", b"after"]
    await two.log.close()


async def test_an_object_that_is_something_else_is_damage(store: GatedStore) -> None:
    one = await opened(store, 1)
    await one.append(b"a", b"b")
    await one.log.close()
    store.objects[PREFIX + LogPoint(1, 1).name] = b"x" * 300
    two = await opened(store, 1, 2)
    (damage,) = two.damages
    assert (damage.first_sequence, damage.last_sequence, damage.is_complete) == (1, 1, False)
    assert two.payloads == [b"b"]
    await two.log.close()


async def test_the_log_of_another_server_is_refused(store: GatedStore) -> None:
    one = await opened(store, 1)
    await one.append(b"a")
    await one.log.close()
    with pytest.raises(FolderVersionError, match="belongs to container"):
        await opened(store, 1, 2, owner=LogOwner(2, OWNER.server_id))


async def test_what_is_not_needed_is_deleted_and_fences_are_not(store: GatedStore) -> None:
    one = await opened(store, 1)
    await one.append(b"a", b"b")
    await one.log.close()
    two = await opened(store, 1, 2)
    await two.append(b"c", b"d", b"e")
    assert two.log.reclaimable_bytes(4) > 0
    two.log.recycle(4)
    await until(lambda: store.points == [(1, 3), (2, 5)])
    assert not two.log.reclaimable_bytes(5)
    await two.log.close()
    # The manifest names where the log begins since before they were deleted.
    three = await opened(store, 2, 3, from_sequence=5)
    assert three.payloads == [b"e"]
    assert three.damages == []
    await three.log.close()


async def test_deletes_are_repeated_until_the_store_takes_them(store: GatedStore) -> None:
    clock = ManualClock()
    one = await opened(store, 1, clock=clock)
    await one.append(b"a", b"b", b"c")
    store.is_refusing_deletes = True
    one.log.recycle(2)
    await until(lambda: clock.sleeper_count == 1)
    store.is_refusing_deletes = False
    await clock.advance(10.0)
    await until(lambda: store.points == [(1, 3)])
    await one.log.close()


async def test_what_an_owner_had_not_to_read_counts_and_is_deleted_with_the_rest(store: GatedStore) -> None:
    """The checkpoint in the folder is newer than the copy, from which the manifest says where the log begins."""
    one = await opened(store, 1)
    await one.append(b"a", b"b", b"c", b"d")
    size = one.log.statistics().fullness
    await one.log.close()
    two = await opened(store, 1, 2, needs_from=3)
    assert two.payloads == [b"c", b"d"]
    assert two.log.statistics().fullness == size
    await two.append(b"e")
    two.log.recycle(4)
    await until(lambda: store.points == [(1, 5), (2, 5)])
    await two.log.close()


async def test_what_is_given_up_as_a_delete_ends_is_deleted_too(store: GatedStore) -> None:
    one = await opened(store, 1)
    await one.append(b"a", b"b", b"c", b"d")
    delete = store.delete

    async def delete_and_recycle(keys: Sequence[str]) -> None:
        await delete(keys)
        # In the turn in which the task of the deletes ends, and before anybody hears of that.
        asyncio.get_running_loop().call_soon(one.log.recycle, 3)

    store.delete = delete_and_recycle  # type: ignore[method-assign]
    one.log.recycle(1)
    await until(lambda: store.points == [(1, 4)])
    await one.log.close()


async def test_what_a_crash_has_left_is_deleted_at_the_next_start(store: GatedStore) -> None:
    one = await opened(store, 1)
    await one.append(b"a", b"b", b"c")
    await one.log.close()
    # The manifest says that the log begins with batch 3, and the process ended before it had deleted.
    two = await opened(store, 1, 2, from_sequence=3)
    assert two.payloads == [b"c"]
    await until(lambda: store.points == [(1, 3), (1, 4)])
    await two.log.close()


async def test_a_log_that_begins_later_than_is_needed_is_damage(store: GatedStore) -> None:
    one = await opened(store, 1, from_sequence=5, needs_from=3)
    (damage,) = one.damages
    assert (damage.first_sequence, damage.last_sequence) == (3, 4)
    assert one.log.durable_sequence == 4
    await one.log.close()


async def test_an_owner_that_had_to_read_nothing_continues_a_log_that_is_read_whole_later(store: GatedStore) -> None:
    one = await opened(store, 1)
    await one.append(b"a", b"b")
    await one.log.close()
    two = await opened(store, 1, 2, needs_from=3)
    assert two.payloads == []
    await two.append(b"c")
    await two.log.close()
    three = await opened(store, 1, 2, 3)
    assert three.damages == []
    assert three.payloads == [b"a", b"b", b"c"]
    await three.log.close()


async def test_a_batch_that_does_not_follow_the_one_before_is_damage(store: GatedStore) -> None:
    one = await opened(store, 1)
    await one.append(b"a", b"b", b"c")
    await one.log.close()
    other = GatedStore()
    rival = await opened(other, 1)
    await rival.append(b"x", b"y")
    await rival.log.close()
    key = PREFIX + LogPoint(1, 2).name
    store.objects[key] = other.objects[key]
    two = await opened(store, 1, 2)
    (damage,) = two.damages
    assert (damage.first_sequence, damage.last_sequence) == (2, 2)
    assert two.payloads == [b"a", b"c"]
    await two.log.close()


async def test_objects_are_read_ahead_up_to_a_bound(store: GatedStore) -> None:
    one = await opened(store, 1)
    await one.append(*[b"%d" % number for number in range(3 * READS_COUNT_MAX)])
    await one.log.close()
    two = await opened(store, 1, 2)
    assert len(two.payloads) == 3 * READS_COUNT_MAX
    assert store.reads_count_max == READS_COUNT_MAX
    await two.log.close()


async def test_a_recovery_that_is_given_up_leaves_nothing_under_way(store: GatedStore) -> None:
    one = await opened(store, 1)
    await one.append(*[b"%d" % number for number in range(40)])
    await one.log.close()
    two = ObjectWal(store, PREFIX, OPTIONS, epochs=[1, 2], from_sequence=1, clock=ManualClock(), owner=OWNER)

    def first() -> RecoveredBatch | Damage:
        items = two.recover()
        try:
            return next(iter(items))
        finally:
            items.close()  # type: ignore[attr-defined]

    assert isinstance(await asyncio.to_thread(first), RecoveredBatch)
    assert store.reads_count == 0


async def test_a_store_that_does_not_take_a_batch_ends_the_log_once(store: GatedStore) -> None:
    one = await opened(store, 1)
    await one.append(b"a")

    async def refuse(key: str, pieces: Sequence[Buffer]) -> str:
        raise StoreUnavailableError("the store does not answer", subject=key)

    store.create = refuse  # type: ignore[method-assign]
    one.submit(b"b")
    await until(lambda: bool(one.failures))
    assert "did not accept batch 2" in str(one.failures[0])
    await one.log.close()
    assert len(one.failures) == 1
    assert one.acked == [b"a"]


async def test_an_owner_that_was_superseded_while_it_recovered_does_not_begin(store: GatedStore) -> None:
    """What it had not read yet may be deleted, and its fence would take the name of a batch that was acknowledged."""
    one = await opened(store, 1)
    await one.append(b"a", b"b")
    await one.log.close()
    late = ObjectWal(store, PREFIX, OPTIONS, epochs=(1, 2), from_sequence=1, clock=ManualClock(), owner=OWNER)
    items = late.read()
    await anext(items)
    later = await opened(store, 1, 2, 3)

    async for _ in items:
        pass

    with pytest.raises(StorageError, match="claim the container again"):
        await late.start(on_durable=lambda runs, sequence, wall_time_us: None, on_failure=lambda error: None)
    await later.log.close()


async def test_a_fence_that_comes_late_in_the_place_of_a_deleted_batch_ends_nothing(store: GatedStore) -> None:
    """A claimant that stood still puts it after its successor has deleted the batch that had that name."""
    one = await opened(store, 1)
    await one.append(b"a", b"b", b"c", b"d")
    await one.log.close()

    class Stalled(GatedStore):
        """The store as a claimant sees it that lists two batches, and stands still when it reads the second one."""

        async def list(self, prefix: str = "", *, after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
            async for page in super().list(prefix, after=after):
                yield [info for info in page if stalled.is_set() or info.key <= PREFIX + LogPoint(1, 2).name]

        async def get(self, key: str) -> StoredObject:
            if key == PREFIX + LogPoint(1, 2).name:
                stalled.set()
                await resumed.wait()
            return await super().get(key)

    stalled, resumed = asyncio.Event(), asyncio.Event()
    view = Stalled()
    view.objects = store.objects
    late = ObjectWal(view, PREFIX, OPTIONS, epochs=(1, 2), from_sequence=1, clock=ManualClock(), owner=OWNER)
    reading = asyncio.ensure_future(exhausted(late))
    await stalled.wait()
    three = await opened(store, 1, 2, 3)
    await three.append(b"e")
    three.log.recycle(2)
    await until(lambda: (1, 2) not in store.points)
    resumed.set()
    await reading
    assert (1, 2) in store.points
    with pytest.raises(StorageError, match="claim the container again"):
        await late.start(on_durable=lambda runs, sequence, wall_time_us: None, on_failure=lambda error: None)
    await three.log.close()

    four = await opened(store, 1, 2, 3, 4, from_sequence=3)
    assert four.payloads == [b"c", b"d", b"e"]
    await four.append(b"f")
    await four.log.close()
    five = await opened(store, 1, 2, 3, 4, 5, from_sequence=3)
    assert five.payloads == [b"c", b"d", b"e", b"f"]
    assert five.damages == []
    await five.log.close()


# --- hedged puts ---


@dataclass
class Hedged:
    """A log that is warm: it knows how long its puts take, which is no time, and may hedge one."""

    one: Opened
    faulty: FaultyStore
    clock: ManualClock
    retrying: RetryingStore

    async def submit_slow(self, payload: bytes, *faults: Fault | None) -> None:
        """Append, with a put that is slow; these are the faults of it and of its hedge."""
        self.faulty.fail("create", *faults)
        asked = self.faulty.calls["create"]
        self.one.submit(payload)
        await until(lambda: self.faulty.calls["create"] > asked)
        await self.clock.advance(HEDGE_S_MIN)


async def hedged(store: GatedStore) -> Hedged:
    clock, faulty = ManualClock(), FaultyStore(store)
    retrying = RetryingStore(faulty, clock=clock)
    one = await opened(retrying.with_hedged_creates(), 1, clock=clock)
    await one.append(*[b"%d" % number for number in range(REQUESTS_PER_HEDGE)])
    return Hedged(one, faulty, clock, retrying)


@pytest.mark.parametrize("slow", [Fault.STALL, Fault.SLOW_ANSWER])
async def test_a_put_that_stalls_is_overtaken(store: GatedStore, slow: Fault) -> None:
    """Behaviour 95: an append waits for the first proof that its batch is stored."""
    log = await hedged(store)
    await log.submit_slow(b"x", slow, None)
    await until(lambda: log.one.acked[-1] == b"x")
    await log.one.append(b"y")
    assert log.faulty.stalled_count == 0
    await log.one.log.close()
    await log.retrying.close()
    two = await opened(store, 1, 2)
    assert two.payloads == log.one.acked
    assert two.damages == []
    await two.log.close()


async def test_a_hedge_that_meets_a_fence_proves_nothing(store: GatedStore) -> None:
    """Behaviour 90: nothing is acknowledged once the next owner has taken the name."""
    log = await hedged(store)
    count = len(log.one.acked)
    log.faulty.fail("create", Fault.STALL, None)
    log.one.submit(b"x")
    await until(lambda: log.faulty.stalled_count == 1)
    two = await opened(store, 1, 2)
    await two.append(b"z")

    await log.clock.advance(HEDGE_S_MIN)
    await until(lambda: bool(log.one.failures))

    assert "was ended at batch" in str(log.one.failures[0])
    assert len(log.one.acked) == count
    await log.one.log.close()
    await log.retrying.close()  # the put that was overtaken comes late, and finds the name taken
    await two.log.close()
    three = await opened(store, 1, 2, 3)
    assert three.payloads == [*log.one.acked, b"z"]
    assert three.damages == []
    await three.log.close()


async def test_a_put_that_comes_late_in_the_place_of_a_deleted_batch_is_deleted_at_the_next_start(
    store: GatedStore,
) -> None:
    """Behaviour 90: the batch that it stores once more is not needed, and nobody reads it."""
    log = await hedged(store)
    await log.submit_slow(b"x", Fault.STALL, None)
    await until(lambda: log.one.acked[-1] == b"x")
    late = log.one.log.durable_sequence
    await log.one.append(b"y", b"z")
    log.one.log.recycle(late + 1)
    await until(lambda: store.points == [(1, late + 2)])
    await log.faulty.land()
    assert store.points == [(1, late), (1, late + 2)]
    await log.one.append(b"more")
    await log.one.log.close()

    reader = ObjectRecovery(store, PREFIX, epochs=(1,), from_sequence=late + 2, owner=OWNER, closes=False)
    items = [item async for item in reader.batches()]
    assert [type(item) for item in items] == [RecoveredBatch, RecoveredBatch]

    two = await opened(store, 1, 2, from_sequence=late + 2)
    assert two.payloads == [b"z", b"more"]
    assert two.damages == []
    await until(lambda: (1, late) not in store.points)
    await two.log.close()


# --- a full store ---


async def filled(store: GatedStore, clock: ManualClock) -> Opened:
    """Return a log whose next batch waits for room."""
    one = await opened(store, 1, clock=clock)
    await store.create("other", [bytes(1000)])
    await one.append(b"a")
    store.quota_bytes = store.used_bytes
    one.submit(b"b")
    await until(lambda: one.log.lacks_room)
    return one


async def test_a_full_store_refuses_appends_and_acks_those_under_way_when_there_is_room(store: GatedStore) -> None:
    """Behaviour 103."""
    clock = ManualClock()
    one = await filled(store, clock)
    assert one.log.refusal == "the object store is full: it is full (403 QuotaExceeded)"
    with pytest.raises(NoSpaceError, match="the object store is full"):
        one.submit(b"c")
    one.log.submit(control_run(b"truncate"))
    await clock.advance(PAUSE_S_MAX)
    assert one.log.statistics().write_age_s == 0.0
    assert (one.acked, one.failures) == ([b"a"], [])

    await store.delete(["other"])
    await clock.advance(PAUSE_S_MAX)
    await until(lambda: len(one.acked) == 3)
    await one.append(b"d")
    assert one.log.refusal is None
    assert one.failures == []
    await one.log.close()
    two = await opened(store, 1, 2)
    assert two.payloads == one.acked
    await two.log.close()


async def test_an_owner_that_waits_for_room_is_fenced_like_any_other(store: GatedStore) -> None:
    """Behaviours 90 and 103."""
    clock = ManualClock()
    one = await filled(store, clock)
    assert store.quota_bytes is not None
    store.quota_bytes += 64  # of a fence, and not of a batch
    two = await opened(store, 1, 2)
    assert two.payloads == [b"a"]
    await clock.advance(PAUSE_S_MAX)
    await until(lambda: bool(one.failures))
    assert "was ended at batch" in str(one.failures[0])
    assert one.acked == [b"a"]
    await one.log.close()
    await two.log.close()


async def test_closing_waits_for_no_room(store: GatedStore) -> None:
    """Behaviour 103: what was not acknowledged may be missing, and the log says how much that is."""
    one = await filled(store, ManualClock())
    await one.log.close()
    (failure,) = one.failures
    assert "closed while the object store is full; 65 bytes are not stored" in str(failure)
    store.quota_bytes = None
    two = await opened(store, 1, 2)
    assert two.payloads == [b"a"]
    await two.log.close()


async def test_closing_stores_what_waits_if_there_is_room_by_then(store: GatedStore) -> None:
    one = await filled(store, ManualClock())
    store.quota_bytes = None
    await one.log.close()
    assert (one.acked, one.failures) == ([b"a", b"b"], [])


async def test_a_recovery_waits_for_the_room_of_its_fence(store: GatedStore) -> None:
    """Behaviour 103."""
    clock = ManualClock()
    one = await opened(store, 1)
    await one.append(b"a")
    await one.log.close()
    store.quota_bytes = store.used_bytes
    opening = asyncio.create_task(opened(store, 1, 2, clock=clock))
    for _ in range(10):
        await clock.advance(PAUSE_S_MAX)
    assert not opening.done()
    store.quota_bytes = None
    await clock.advance(PAUSE_S_MAX)
    two = await opening
    assert two.payloads == [b"a"]
    await two.log.close()
