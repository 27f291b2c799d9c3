"""Containers whose log has lost something, before and after the loss is accepted."""

import errno
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from millrace.model.transaction import TransactionState
from millrace.server.container.log_loss import ACCEPTED_SOURCE
from millrace.server.container.repair import accept_loss
from millrace.server.container.state.garbage import DeleteAfter
from millrace.server.errors import (
    ContentLostError,
    SegmentDamagedError,
    SegmentSealedError,
    ServerError,
    StreamHasExclusiveWriterError,
    WriterFencedError,
)
from millrace.server.kinds.segments.commands import SegmentCommands
from millrace.server.kinds.transactions.commands import TransactionCommands
from millrace.server.kinds.transactions.options import TransactionsOptions
from millrace.server.kinds.writers.commands import WriterCommands
from millrace.server.kinds.writers.exclusive import ExclusiveCommands
from millrace.server.tier2 import ChunkId, chunk_name
from millrace.server.wal import NEWEST_NAME
from millrace.wire import messages as m
from millrace.wire.limits import KIB
from tests.server.container.states import waiting
from tests.server.streams.containers import Streams, streams_in
from tests.support.clock import ManualClock
from tests.support.files import MemoryFileSystem, SteppedFileSystem
from tests.support.servers import SMALL_WAL
from tests.support.storage import MemoryStorage

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

FOLDER = Path("/data/containers/0000")
LOG = FOLDER / "wal"
CAPACITY_BYTES = SMALL_WAL.files_max * SMALL_WAL.file_size_bytes


@dataclass
class Acknowledged:
    """What was acknowledged before something was lost."""

    raw_id: int
    raw: bytes
    sealed_id: int
    stream_segments: dict[int, int]
    highest_id: int
    writer_epoch: int


class Disk:
    """A container that stored something and was killed; its storage and its clock."""

    def __init__(self, files: MemoryFileSystem | None = None) -> None:
        self.files = files or MemoryFileSystem()
        self.storage = MemoryStorage()
        self.clock = ManualClock()

    def open(self) -> AbstractAsyncContextManager[Streams]:
        return streams_in(FOLDER, storage=self.storage, clock=self.clock, files=self.files)

    async def fill(self, *, checkpoint_after: int = 0) -> Acknowledged:
        """Store in segments, in a stream and under a writer; flush and save a checkpoint after so many appends."""
        async with self.open() as streams:
            opened = streams.opened
            control = SegmentCommands(opened.container)
            raw = await control.create("raw/a")
            sealed = await control.create("raw/sealed")
            stream, _ = await streams.controller.create("shop/orders", segment_count=2, configuration="{}")
            await streams.append(sealed.segment_id, b"final")
            await control.seal(sealed)
            content = b""
            for number in range(1, 31):
                piece = number.to_bytes(2, "little") * 4 * KIB
                await streams.append(raw.segment_id, piece)
                content += piece
                for segment_id in stream.segment_ids:
                    await streams.append(segment_id, bytes(number))
                if number == checkpoint_after:
                    await opened.flusher.flush()
                    await opened.flusher.checkpoint()
            container = opened.container
            writer = await WriterCommands(container).open("w")
            late = await control.create("raw/late")
            return Acknowledged(
                raw_id=raw.segment_id,
                raw=content,
                sealed_id=sealed.segment_id,
                stream_segments={each: container.segment(each).length for each in stream.segment_ids},
                highest_id=late.segment_id,
                writer_epoch=writer.writer_epoch,
            )

    def log_files(self) -> list[Path]:
        return [LOG / name for name in self.files.list_directory(LOG) if name.endswith(".log")]

    def contents(self) -> dict[Path, bytes]:
        return {
            folder / name: self.files.content(folder / name)
            for folder in (FOLDER, LOG)
            for name in self.files.list_directory(folder)
            if name != "wal"
        }

    def last_with_batches(self) -> Path:
        """The newest log file, which all of the last appends are in."""
        return max(path for path in self.log_files() if self.files.content(path)[4096:].strip(b"\0"))


def lose_newest(disk: Disk) -> None:
    disk.files.remove(disk.last_with_batches())


def empty_newest(disk: Disk) -> None:
    disk.files.replace_content(disk.last_with_batches(), b"")


def zero_newest(disk: Disk) -> None:
    path = disk.last_with_batches()
    disk.files.replace_content(path, bytes(len(disk.files.content(path))))


def replace_newest(disk: Disk) -> None:
    """Put an older file in the place of the newest, under its name."""
    path = disk.last_with_batches()
    disk.files.replace_content(path, disk.files.content(disk.log_files()[0]))


def lose_all(disk: Disk) -> None:
    for path in disk.log_files():
        disk.files.remove(path)


def lose_folder(disk: Disk) -> None:
    lose_all(disk)
    disk.files.remove(LOG / NEWEST_NAME)


def lose_middle(disk: Disk) -> None:
    """Lose a file between two others."""
    disk.files.remove(disk.log_files()[1])


def ruin_middle(disk: Disk) -> None:
    """Overwrite some batches, run tables and all, with others after them."""
    path = disk.log_files()[0]
    content = bytearray(disk.files.content(path))
    content[40 * KIB : 60 * KIB] = bytes(b"\xa5" * 20 * KIB)
    disk.files.replace_content(path, bytes(content))


LOSSES = [lose_newest, empty_newest, zero_newest, replace_newest, lose_all, lose_folder, lose_middle, ruin_middle]


async def refused(streams: Streams, segment_id: int) -> str:
    with pytest.raises(ContentLostError) as caught:
        await streams.append(segment_id, b"new")
    return str(caught.value)


async def check_accepted(disk: Disk, told: Acknowledged) -> None:
    """Demand that nothing which was acknowledged is given out again, and that everything works."""
    async with disk.open() as streams:
        container = streams.opened.container
        assert container.loss is None
        assert streams.opened.summary.damages == 0
        raw = container.segment(told.raw_id)
        assert raw.length >= len(told.raw)
        await streams.append(told.raw_id, b"new")
        (hole,) = [damage for damage in raw.damages if damage.source == ACCEPTED_SOURCE]
        assert hole.end == raw.length - 3
        (pieces,) = await container.reads.read(raw, hole.end, 10)
        assert bytes(pieces) == b"new"
        with pytest.raises(SegmentDamagedError):
            container.reads.start(raw, hole.start, 1)
        for segment_id, length in told.stream_segments.items():
            segment = container.segment(segment_id)
            assert segment.sealed
            assert segment.length <= length
            with pytest.raises(SegmentSealedError):
                await streams.append(segment_id, b"new")
        stream = streams.controller.find("shop/orders")
        successors = stream.open_parts
        assert len(successors) == 2
        assert {part.segment_id for part in successors}.isdisjoint(told.stream_segments)
        assert min(part.segment_id for part in successors) > told.highest_id
        await streams.append(successors[0].segment_id, b"new")
        control = SegmentCommands(container)
        assert (await control.create("raw/next")).segment_id > told.highest_id
        opened = await WriterCommands(container).open("w")
        # Known under a higher epoch, or under a number that nobody was ever given.
        assert opened.writer_epoch > told.writer_epoch or opened.writer_number > told.highest_id
    async with disk.open() as streams:
        assert streams.opened.container.loss is None
        assert streams.opened.summary.damages == 0


@pytest.mark.parametrize("lose", LOSSES)
async def test_nothing_is_stored_or_changed_until_a_loss_is_accepted(lose: Callable[[Disk], None]) -> None:
    """Behaviour 82: also after any number of restarts, and it is over when the files are put back."""
    disk = Disk()
    told = await disk.fill(checkpoint_after=3)
    whole = disk.files.copy()
    lose(disk)
    before = disk.contents()
    for _ in range(2):
        async with disk.open() as streams:
            container = streams.opened.container
            reason = await refused(streams, told.raw_id)
            assert "the log has lost its content after batch" in reason
            assert "since 2023-11-14T22:13:20" in reason
            assert "KiB" in reason
            assert streams.opened.summary.lost_bytes > 0
            raw = container.segment(told.raw_id)
            (piece, *_) = await container.reads.read(raw, 0, 8 * KIB)
            assert bytes(piece) == told.raw[: len(piece)]
            with pytest.raises(ContentLostError):
                container.reads.start(raw, raw.length + 1, 1)
            with pytest.raises(ContentLostError):
                await SegmentCommands(container).create("raw/next")
            with pytest.raises(ContentLostError):
                await streams.controller.seal("shop/orders")
        assert disk.contents() == before
    disk.files = whole
    async with disk.open() as streams:
        assert streams.opened.container.loss is None
        assert streams.opened.container.segment(told.raw_id).length == len(told.raw)
        await streams.append(told.raw_id, b"new")


@pytest.mark.parametrize("lose", LOSSES)
async def test_accepting_a_loss_gives_nothing_out_again(lose: Callable[[Disk], None]) -> None:
    """Behaviour 82: no offset, no id and no epoch."""
    disk = Disk()
    told = await disk.fill(checkpoint_after=3)
    lose(disk)
    async with disk.open() as streams:
        plan = await accept_loss(streams.opened)
        assert plan.holes[0].name == "raw/a"
        assert sum(map(len, plan.sealed.values())) == 2
    await check_accepted(disk, told)


async def test_the_hole_is_as_large_as_what_is_missing() -> None:
    """Behaviour 82: at most what the ruined bytes can have held, if no file is missing; else at most the whole log."""
    sizes = {}
    for lose in (ruin_middle, lose_newest):
        disk = Disk()
        await disk.fill()
        lose(disk)
        async with disk.open() as streams:
            loss = streams.opened.container.loss
            assert loss is not None
            sizes[lose] = loss.size_bytes
    assert 0 < sizes[ruin_middle] < SMALL_WAL.file_size_bytes
    assert sizes[lose_newest] == CAPACITY_BYTES


async def test_bytes_of_tier_2_that_the_state_does_not_know_are_not_given_out_again() -> None:
    """Behaviour 82: a checkpoint may be older than what was published."""
    disk = Disk()
    told = await disk.fill()
    saved = disk.files.content(FOLDER / "checkpoint.db")
    async with disk.open() as streams:
        await streams.opened.flusher.flush()
    disk.files.replace_content(FOLDER / "checkpoint.db", saved)
    lose_folder(disk)
    async with disk.open() as streams:
        await accept_loss(streams.opened)
    async with disk.open() as streams:
        container = streams.opened.container
        assert container.state.scalars.next_id > max(told.stream_segments)
        assert streams.opened.environment.epoch > 1024


async def test_chunks_from_before_an_accepted_loss_are_kept_and_those_of_a_later_crash_deleted() -> None:
    """Behaviour 46: the newest copy did not know them, so nothing else holds what was flushed after it."""
    disk = Disk()
    await disk.fill()
    saved = disk.files.content(FOLDER / "checkpoint.db")
    async with disk.open() as streams:
        await streams.opened.flusher.flush()
    disk.files.replace_content(FOLDER / "checkpoint.db", saved)
    lose_folder(disk)
    async with disk.open() as streams:
        await accept_loss(streams.opened)
    async with disk.open() as streams:
        later = chunk_name(
            ChunkId(segment_id=5, start_offset=0, length=9, container_epoch=streams.opened.environment.epoch)
        )
    await disk.storage.publish(f"c0000/{later}", [b"left by a crash"])
    async with disk.open() as streams:
        await streams.opened._collect_orphans()
        assert waiting(streams.opened.container.state.garbage, DeleteAfter.COPY) == [later]


async def test_a_second_loss_is_told_as_the_first_was() -> None:
    """Behaviour 82: what was accepted hides nothing that is lost later."""
    disk = Disk()
    told = await disk.fill()
    lose_newest(disk)
    async with disk.open() as streams:
        await accept_loss(streams.opened)
    async with disk.open() as streams:
        await streams.append(told.raw_id, b"acked")
        length = streams.opened.container.segment(told.raw_id).length
    disk.files.remove(disk.last_with_batches())
    async with disk.open() as streams:
        await refused(streams, told.raw_id)
        await accept_loss(streams.opened)
    async with disk.open() as streams:
        assert streams.opened.container.segment(told.raw_id).length >= length
        await streams.append(told.raw_id, b"new")


async def test_files_that_are_put_back_after_the_loss_was_accepted_change_nothing() -> None:
    """Behaviour 82: their bytes are given up."""
    disk = Disk()
    told = await disk.fill()
    path = disk.last_with_batches()
    content = disk.files.content(path)
    lose_newest(disk)
    async with disk.open() as streams:
        await accept_loss(streams.opened)
    disk.files.open(path, create=True).close()
    disk.files.replace_content(path, content)
    await check_accepted(disk, told)


async def test_an_older_epoch_of_a_writer_is_fenced_after_a_loss_was_accepted() -> None:
    """Behaviour 82: somebody may have opened the writer again in what is lost."""
    disk = Disk()
    await disk.fill()
    async with disk.open() as streams:
        before = await WriterCommands(streams.opened.container).open("w")
        await streams.opened.flusher.checkpoint()
    lose_newest(disk)
    async with disk.open() as streams:
        await accept_loss(streams.opened)
    async with disk.open() as streams:
        writer = streams.opened.container.state.writers.get(before.writer_number)
        assert writer is not None
        assert writer.row.epoch > before.writer_epoch


async def test_no_hole_is_committed_with_a_transaction() -> None:
    """Behaviours 28 and 82: one that is open is aborted, one that is prepared has what it had, and can be committed."""
    disk = Disk()
    async with disk.open() as streams:
        container = streams.opened.container
        stream, _ = await streams.controller.create("shop/orders", segment_count=2, configuration="{}")
        transactions = transactions_of(streams)
        writer = await WriterCommands(container).open("w")
        fields = {"writer_number": writer.writer_number, "writer_epoch": writer.writer_epoch, "event_number": 1}
        parts: dict[str, list[int]] = {}
        for name in ("open", "prepared"):
            number = await transactions.reserve_ids(3)
            routed = [m.RoutedStream("shop/orders", 0, 0)]
            begun = transactions.begin_now(number, name, lease_ms=30_000, streams=routed)
            assert begun is not None
            parts[name] = [number + 1, number + 2]
            added = [m.NewPart(*each) for each in zip(parts[name], stream.segment_ids, strict=True)]
            await transactions.settled(transactions.add_parts_now(number, 0, added))
            await streams.append(parts[name][0], b"event", **fields)
        prepared = transactions.prepare_now(number, [m.BranchCount(0, 1)], drops_others=False)
        await transactions.settled(prepared)
        await streams.opened.flusher.flush()
        await streams.opened.flusher.checkpoint()
        await streams.append(stream.segment_ids[0], b"lost")
    lose_newest(disk)
    async with disk.open() as streams:
        plan = await accept_loss(streams.opened)
        assert plan.transactions == [parts["open"][0] - 1]
        assert plan.holes == []
    async with disk.open() as streams:
        container, transactions = streams.opened.container, transactions_of(streams)
        assert transactions.answers.outcome(0, "open").state == TransactionState.ABORTED
        assert not any(container.state.segments.get(segment_id) for segment_id in parts["open"])
        committed = await transactions.commit(0, (), drops_others=False, name="prepared")
        await transactions.settled(committed)
        ((_, length),) = committed.transaction.row.cuts[0].positions
        target, _ = streams.controller.find("shop/orders").open_parts
        assert length == container.segment(target.segment_id).length == len(b"event")
        (content,) = await container.reads.read(container.segment(target.segment_id), 0, 100)
        assert bytes(content) == b"event"


def transactions_of(streams: Streams) -> TransactionCommands:
    return TransactionCommands(streams.opened.container, streams.controller, options=TransactionsOptions())


async def test_who_has_a_stream_alone_is_fenced_after_a_loss_was_accepted() -> None:
    """Behaviour 82: somebody may have taken the stream over in what is lost; nobody else writes until somebody does."""
    disk = Disk()

    async def take(streams: Streams) -> dict[str, int]:
        container = streams.opened.container
        control = ExclusiveCommands(container, streams=streams.controller, writers=WriterCommands(container))
        stream_id = streams.controller.find("shop/orders").stream_id
        opened = await control.open("w", [], start_over=False, stream_id=stream_id, nonce=m.NO_NONCE, expected=[])
        return {"writer_number": opened.writer_number, "writer_epoch": opened.writer_epoch, "event_number": 1}

    async with disk.open() as streams:
        await streams.controller.create("shop/orders", segment_count=1, configuration="{}")
        before = await take(streams)
        await streams.opened.flusher.checkpoint()
    lose_newest(disk)
    async with disk.open() as streams:
        await accept_loss(streams.opened)
    async with disk.open() as streams:
        (part,) = streams.controller.find("shop/orders").open_parts
        with pytest.raises(WriterFencedError):
            await streams.append(part.segment_id, b"x", **before)
        with pytest.raises(StreamHasExclusiveWriterError):
            await streams.append(part.segment_id, b"x")
        await streams.append(part.segment_id, b"x", **await take(streams))


async def test_accepting_can_be_ended_at_every_step() -> None:
    """Behaviour 82: the loss is known as ever, or it is accepted; a second attempt ends what the first began."""
    filled = Disk()
    told = await filled.fill(checkpoint_after=3)
    lose_newest(filled)
    disk, files = fork(filled)
    async with disk.open() as streams:
        before_count = files.step_count
        await accept_loss(streams.opened)
        step_count = files.step_count - before_count
    assert step_count > 10
    for step in range(1, step_count + 1):
        disk, files = fork(filled)
        async with disk.open() as streams:
            # From this step on the disk takes nothing, as after a kill.
            files.refuses = from_step(files.step_count + step)
            with suppress(ServerError, OSError):
                await accept_loss(streams.opened)
            disk.files = files.copy()
        async with disk.open() as streams:
            if streams.opened.container.loss is not None:
                await refused(streams, told.raw_id)
                await accept_loss(streams.opened)
        if step % 8 == 0:
            await check_accepted(disk, told)


def fork(disk: Disk) -> tuple[Disk, SteppedFileSystem]:
    """Return another disk with the same content."""
    files = SteppedFileSystem()
    files.error = errno.EROFS
    files._folders = disk.files.copy()._folders
    forked = Disk(files)
    forked.clock = disk.clock
    forked.storage.take_over(disk.storage)
    return forked, files


def from_step(first: int) -> Callable[[int, Path, bool], bool]:
    return lambda number, _path, is_change: is_change and number >= first
