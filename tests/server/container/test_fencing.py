"""A container that another server takes over, or may have: it acknowledges, stores, recycles and deletes nothing."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import pytest_asyncio

from millrace.server.cache import CacheOptions, PageCache
from millrace.server.container.admission import PendingAppend
from millrace.server.container.checkpoint.backup import CHECKPOINT_PREFIX, COPIES_KEPT, CopyPart
from millrace.server.container.options import ContainerOptions
from millrace.server.container.running import ORPHAN_SEARCH_INTERVAL_S, OpenContainer
from millrace.server.container.startup import open_container
from millrace.server.container.state.garbage import DeleteAfter
from millrace.server.errors import (
    ChunkExistsError,
    DiskUnavailableError,
    LogFailedError,
    OwnerFencedError,
    ServerError,
    StorageError,
)
from millrace.server.kinds.segments.commands import SegmentCommands
from millrace.server.kinds.writers.commands import WriterCommands
from millrace.server.ownership import CopyRecord
from millrace.server.tier2 import ChunkId, chunk_name
from millrace.server.wal import AcceptedLoss
from millrace.wire.append_scan import scan_run
from millrace.wire.framing import encode_append_header
from tests.server.container.flush.test_flusher import chunks_in
from tests.server.container.states import waiting
from tests.server.container.test_many_containers import Home, append, content, published
from tests.support.internal import Appender
from tests.support.memory_log import LogMedium
from tests.support.ownership import MemoryOwnership, Register
from tests.support.servers import QUIET
from tests.support.storage import FaultyStorage
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

FENCE = OwnerFencedError("container 0 was taken over by another server")
OPTIONS = replace(QUIET, orphan_grace_s=0.0)
APART = replace(OPTIONS, chunk_size_bytes_small=0)
"""No chunk is written again together with others."""


@pytest_asyncio.fixture
async def cache() -> AsyncIterator[PageCache]:
    """The cache of all containers of a test."""
    cache = PageCache(CacheOptions())
    yield cache
    await cache.close()


@dataclass
class Place:
    """A data folder from which the one container of a store is served."""

    home: Home
    register: Register
    cache: PageCache
    failures: list[ServerError] = field(default_factory=list)
    ownership: MemoryOwnership | None = None

    @property
    def storage(self) -> FaultyStorage:
        return self.home.storage

    @property
    def owned(self) -> MemoryOwnership:
        """The right of the newest start here."""
        assert self.ownership is not None
        return self.ownership

    @asynccontextmanager
    async def opened(
        self, options: ContainerOptions = OPTIONS, *, flush_s: float = 0.0
    ) -> AsyncIterator[OpenContainer]:
        environment = await self.home.environment(self.cache)
        self.ownership = self.register.claim(environment.epoch)
        container = await open_container(
            replace(environment, ownership=self.ownership, on_failure=self.failures.append, container_options=options)
        )
        try:
            yield container
        finally:
            await container.close(log_s=5.0, flush_s=flush_s)

    def taken_over(self) -> MemoryOwnership:
        """Let another server have the container, of which this one does not know yet."""
        return self.register.claim(0)


@pytest.fixture
def place(cache: PageCache) -> Place:
    return Place(Home(0, FaultyStorage()), Register(), cache)


def submitted(
    opened: OpenContainer, segment_id: int, payload: bytes, *, request_id: int = 1, **writer: Any
) -> PendingAppend:
    """Give a container an append, whose batch is not durable yet."""
    header = encode_append_header(
        request_id=request_id, segment_id=segment_id, payload=payload, event_count=1, **writer
    )
    frames = bytes(header) + payload
    run = scan_run(bytearray(frames), memoryview(frames), start=0, end=len(frames))
    assert run is not None
    (pending,) = opened.container.append(run, Appender())
    return pending


async def turns() -> None:
    """Let the log write what it was given."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_fenced_container_acknowledges_nothing_and_refuses_by_name(place: Place) -> None:
    """Behaviour 91: what waits is of unknown outcome, also what the disk has; what comes is refused by name."""
    async with place.opened() as opened:
        container = opened.container
        segment = await SegmentCommands(container).create("raw/a")
        pending = submitted(opened, segment.segment_id, b"x")

        container.fenced(FENCE)
        await turns()

        assert isinstance(pending.error, LogFailedError)
        assert "taken over by another server; the outcome is unknown" in str(pending.error)
        assert segment.length == 0
        with pytest.raises(OwnerFencedError, match="taken over by another server"):
            submitted(opened, segment.segment_id, b"y")
        assert container.refusal == str(FENCE)
        # It is ended, not opened again.
        assert place.failures == [FENCE]
        assert container.has_failed
        assert not container.must_recover


async def test_a_failure_after_the_fence_changes_nothing(place: Place) -> None:
    async with place.opened() as opened:
        opened.container.fenced(FENCE)
        opened.container.log_failed(OSError("late"))
        opened.container.stay_failed("could not be opened again")
        assert opened.container.refusal == str(FENCE)
        assert not opened.container.must_recover


async def test_what_is_acknowledged_of_a_batch_is_known_to_be_ours(place: Place) -> None:
    """Behaviour 91: after standing still for its lease, a container fails like its log, and is claimed again."""
    async with place.opened() as opened:
        segment = await SegmentCommands(opened.container).create("raw/a")
        pending = submitted(opened, segment.segment_id, b"x")
        place.owned.is_stalled = True
        await turns()

        assert isinstance(pending.error, LogFailedError)
        assert segment.length == 0
        assert opened.container.must_recover
        assert [type(failure) for failure in place.failures] == [LogFailedError]
        assert "stalled for longer than its lease" in opened.container.refusal
    # The log has it: it was of unknown outcome, and is there.
    async with place.opened() as opened:
        assert await content(opened, "raw/a") == b"x"


async def test_what_was_stored_before_is_not_acknowledged_again_by_one_that_stood_still(place: Place) -> None:
    """Behaviour 91: the server that has taken over may not have it."""
    async with place.opened() as opened:
        segment = await SegmentCommands(opened.container).create("raw/a")
        writer = await WriterCommands(opened.container).open("w")
        numbers = {"writer_number": writer.writer_number, "writer_epoch": writer.writer_epoch, "event_number": 1}
        stored = submitted(opened, segment.segment_id, b"x", **numbers)
        await turns()
        assert stored.settled
        assert stored.error is None
        again = submitted(opened, segment.segment_id, b"x", **numbers)
        assert again.settled
        assert again.error is None

        place.owned.is_stalled = True
        with pytest.raises(DiskUnavailableError, match="stalled for longer than its lease"):
            submitted(opened, segment.segment_id, b"x", **numbers)
        assert opened.container.must_recover


async def with_garbage(opened: OpenContainer) -> None:
    """Leave a copy that counts, chunks that only such copies refer to, and bytes that are not in tier 2."""
    control = SegmentCommands(opened.container)
    for name in ("raw/kept", "raw/doomed"):
        segment = await control.create(name)
        await append(opened, segment.segment_id, name.encode() * 100)
    for _ in range(COPIES_KEPT):
        await published(opened)
    doomed, kept = (opened.container.state.segments.find(name) for name in ("raw/doomed", "raw/kept"))
    assert doomed is not None
    assert kept is not None
    await control.delete(doomed)
    await append(opened, kept.segment_id, b"more")
    await opened.flusher.checkpoint()


async def test_one_that_was_superseded_recycles_and_deletes_nothing(place: Place) -> None:
    """Behaviour 91: its copy of the checkpoint counts for nothing, and so does all that would follow from it."""
    async with place.opened() as opened:
        await with_garbage(opened)
        names, log = place.home.names(), list(place.home.log.batches)
        place.taken_over()

        with pytest.raises(OwnerFencedError):
            await opened.flusher.copy()

        assert place.failures == [opened.container.fence]
        assert names < place.home.names()  # that copy
        names = place.home.names()
        for step in (opened.flusher.flush, opened.flusher.checkpoint, opened.flusher.copy):
            with pytest.raises(StorageError, match="has failed"):
                await step()
        assert await opened.flusher._delete_due() == 0
        assert place.home.names() == names
        assert place.home.log.batches == log
    # While this one has it, the same copy lets all of that be done.
    async with place.opened() as opened:
        await opened.flusher.flush()
        await published(opened)
        assert not names <= place.home.names()
        assert place.home.log.batches[0].sequence > log[0].sequence


async def test_what_may_be_deleted_stays_once_a_container_is_fenced(place: Place) -> None:
    """Behaviour 91: also what was given up before, and waits for nothing any more."""
    async with place.opened() as opened:
        await with_garbage(opened)
        deleting = place.storage.names()
        opened.container.state.garbage.add(
            [name.removeprefix("c0000/") for name in deleting], delete_after=DeleteAfter.NOW
        )
        opened.container.fenced(FENCE)
        assert await opened.flusher._delete_due() == 0
        assert place.storage.names() == deleting


async def test_a_stop_after_the_fence_stores_nothing(place: Place) -> None:
    """Behaviour 91: no chunk and no copy, though there is time for them."""
    async with place.opened(replace(OPTIONS, copy_interval_s=60.0), flush_s=5.0) as opened:
        await with_garbage(opened)
        names = place.home.names()
        opened.container.fenced(FENCE)
    assert place.home.names() == names


async def test_a_copy_of_which_it_is_not_known_whether_it_counts_frees_nothing(place: Place) -> None:
    """The store did not answer: nothing is lost, and the next copy does it."""
    async with place.opened() as opened:
        await with_garbage(opened)
        names, log = place.home.names(), list(place.home.log.batches)
        place.owned.is_away = True
        with pytest.raises(StorageError, match="cannot be reached"):
            await opened.flusher.copy()
        assert names < place.home.names()
        assert place.home.log.batches == log
        assert not place.failures

        place.owned.is_away = False
        await opened.flusher.copy()
        assert not names <= place.home.names()


async def test_what_the_log_gave_up_stays_until_a_copy_without_it_counts(place: Place) -> None:
    """Behaviour 90: who takes over has a copy, and no log that gives it up again."""
    async with place.opened() as opened:
        await with_garbage(opened)
        chunks = place.storage.names()
        assert len(chunks) == 2
        await opened.flusher.checkpoint()
        assert place.storage.names() == chunks
        await opened.flusher.copy()
        assert len(place.storage.names()) == 1


async def test_an_epoch_is_raised_by_its_owner_only(place: Place) -> None:
    """Behaviour 91: a superseded server that finds its chunk taken learns so, and publishes no other one."""
    async with place.opened(APART) as opened:
        segment = await SegmentCommands(opened.container).create("raw/a")
        for payload, is_owner in ((b"a", True), (b"b", False)):
            await append(opened, segment.segment_id, payload * 100)
            epoch = place.owned.epoch
            taken = ChunkId(
                segment_id=segment.segment_id,
                start_offset=segment.flushed_offset,
                length=100,
                container_epoch=epoch,
            )
            await place.storage.publish(f"c0000/{chunk_name(taken)}", [b"of somebody else"])
            if is_owner:
                with pytest.raises(ChunkExistsError):
                    await opened.flusher.flush()
                assert place.owned.epoch == place.register.epoch == epoch + 1
                await opened.flusher.flush()
            else:
                place.taken_over()
                with pytest.raises(OwnerFencedError):
                    await opened.flusher.flush()
                assert place.owned.epoch == epoch
        assert opened.container.fence is not None


async def elsewhere(place: Place, opened: OpenContainer) -> Place:
    """Return another folder, which has what the log has now, and no checkpoint."""
    assert opened.container.state.sequence == place.home.log.batches[-1].sequence
    log = LogMedium(batches=list(place.home.log.batches))
    return Place(Home(0, place.storage, log=log), place.register, place.cache)


async def test_the_copy_of_a_superseded_server_is_ignored_however_new_it_is(place: Place) -> None:
    """Behaviour 91: the next start takes the copy that counts; the other one is deleted once another counts."""
    async with place.opened() as zombie:
        segment = await SegmentCommands(zombie.container).create("raw/a")
        await append(zombie, segment.segment_id, b"counts")
        await published(zombie)
        other = await elsewhere(place, zombie)
        other.taken_over()
        for _ in range(9):
            await append(zombie, segment.segment_id, b"zombie")
        await zombie.flusher.checkpoint()
        with pytest.raises(OwnerFencedError):
            await zombie.flusher.copy()
    counted = place.register.copy
    assert counted is not None
    late = [name for name in place.storage.names(CHECKPOINT_PREFIX) if counted.name not in name]
    assert late
    assert min(late) > f"c0000/{counted.name}"

    async with other.opened() as opened:
        assert opened.summary.restored_from == counted.name
        assert await content(opened, "raw/a") == b"counts"
        for _ in range(2):
            await append(opened, segment.segment_id, b"!")
            await published(opened)
        assert not set(late) & set(place.storage.names(CHECKPOINT_PREFIX))
    for _ in range(2):
        async with other.opened() as opened:
            assert await content(opened, "raw/a") == b"counts!!"


async def test_copies_of_a_server_that_has_taken_over_are_left_to_it(place: Place) -> None:
    """Behaviour 91: it may have come between the record of a copy and the deletes that follow from that."""
    async with place.opened() as opened:
        await SegmentCommands(opened.container).create("raw/a")
        for _ in range(COPIES_KEPT):
            await published(opened)
        epoch = place.owned.epoch
        theirs = CopyPart(sequence=0, container_epoch=epoch + 1, number=1, part=0, part_count=1).name
        late = CopyPart(sequence=999, container_epoch=epoch - 1, number=1, part=0, part_count=1).name
        for name in (theirs, late):
            await place.storage.publish(f"c0000/{name}", [b"a part"])
        await published(opened)
        kept = place.storage.names(CHECKPOINT_PREFIX)
        assert f"c0000/{theirs}" in kept
        assert f"c0000/{late}" not in kept
        counted = {copy.name for copy in place.register.copies[-COPIES_KEPT:]}
        assert {name.removeprefix("c0000/")[: len(place.register.copies[0].name)] for name in kept} == {
            *counted,
            theirs[: len(place.register.copies[0].name)],
        }


@pytest.mark.parametrize("is_missing", [True, False])
async def test_an_older_whole_copy_is_taken_where_the_one_that_counts_is_damaged(
    place: Place, is_missing: bool
) -> None:
    """Behaviour 41: never a newer one."""
    async with place.opened(APART) as opened:
        segment = await SegmentCommands(opened.container).create("raw/a")
        await append(opened, segment.segment_id, b"one")
        other = await elsewhere(place, opened)
        await published(opened)
        await append(opened, segment.segment_id, b"two")
        await published(opened)
        other.taken_over()
        await append(opened, segment.segment_id, b"three")
        await opened.flusher.checkpoint()
        with pytest.raises(OwnerFencedError):
            await opened.flusher.copy()
    older, counted = place.register.copies
    for name in place.storage.names(CHECKPOINT_PREFIX):
        if counted.name in name:
            if is_missing:
                await place.storage.delete(name)
            else:
                place.storage.replace(name, b"damaged")
    async with other.opened() as opened:
        assert opened.summary.restored_from == older.name
        assert await content(opened, "raw/a") == b"one"


async def test_orphans_are_looked_for_every_day_where_a_superseded_server_may_still_publish(place: Place) -> None:
    """Behaviour 90: its late chunks come after the first search."""
    async with place.opened() as opened:
        cleaning = asyncio.ensure_future(opened.clean_tier2())
        garbage = opened.container.state.garbage
        late = chunk_name(ChunkId(segment_id=5, start_offset=0, length=9, container_epoch=0))
        for _ in range(2):
            await until(lambda: place.home.clock.sleeper_count)
            assert waiting(garbage, DeleteAfter.COPY) == []
            await place.storage.publish(f"c0000/{late}", [b"left over"])
            place.home.clock.move(ORPHAN_SEARCH_INTERVAL_S)
            await until(lambda: waiting(garbage, DeleteAfter.COPY) == [late])
            for _ in range(2):
                await published(opened)
            assert not place.storage.names()
        cleaning.cancel()
        await asyncio.gather(cleaning, return_exceptions=True)


async def test_an_accepted_loss_is_in_a_copy_before_anything_is_served(place: Place) -> None:
    """A start elsewhere, from a copy without it, would give the ids of lost records again."""
    async with place.opened() as opened:
        await SegmentCommands(opened.container).create("raw/a")
        await published(opened)
        before = place.register.copy
        state = opened.container.state
        state.scalars.accepted = AcceptedLoss(state.sequence + 1, 1)
        await SegmentCommands(opened.container).create("raw/b")
        await opened.flusher.checkpoint()
    assert place.register.copy == before
    async with place.opened():
        assert place.register.copy != before
    counted = place.register.copy
    async with place.opened():
        assert place.register.copy == counted


@pytest.mark.parametrize("seed", range(8))
async def test_all_chunks_of_the_copy_that_counts_are_there_at_any_time(place: Place, seed: int) -> None:
    """Behaviour 90: whatever is flushed, truncated, deleted, stored and copied in whatever order, or fails."""
    draws = random.Random(seed)
    options = replace(OPTIONS, flush_size_bytes=1, chunk_size_bytes_small=300, garbage_interval_s=0.0)
    checked = 0

    def check(_when: str, action: str, _name: str) -> None:
        nonlocal checked
        counted = place.register.copy
        if action == "delete" and counted is not None:
            checked += 1
            names = {name.removeprefix("c0000/") for name in place.storage.names()}
            assert referred_to(place, counted) <= names

    place.storage.on_step = check
    async with place.opened(options) as opened:
        control, state, flusher = SegmentCommands(opened.container), opened.container.state, opened.flusher
        for number in range(80):
            segments = [segment for segment in state.segments.values() if not segment.deleted]
            segment = draws.choice(segments) if segments else None
            step = draws.choices(
                ["create", "append", "truncate", "delete", "flush", "checkpoint", "copy", "away"],
                weights=[2, 8, 3, 1, 5, 4, 3, 1],
            )[0]
            place.owned.is_away = step == "away"
            if step == "create" or segment is None:
                await control.create(f"raw/{number}")
            elif step == "append":
                await append(opened, segment.segment_id, b"%d" % number * 100)
            elif step == "truncate":
                await control.truncate(segment, draws.randint(segment.start_offset, segment.length))
            elif step == "delete":
                await control.delete(segment)
            elif step == "flush":
                await flusher.flush()
            elif step == "checkpoint":
                await flusher.checkpoint()
            else:
                with contextlib.suppress(StorageError):
                    await flusher.copy()
        place.owned.is_away = False
        await flusher.checkpoint()
        await flusher.copy()
    assert checked > 10


def referred_to(place: Place, copy: CopyRecord) -> set[str]:
    """Return the chunks that a copy of the checkpoint refers to."""
    ((name, part),) = [
        (name.removeprefix("c0000/"), place.storage.content(name))
        for name in place.storage.names("")
        if copy.name in name
    ]
    return chunks_in(name, part)
