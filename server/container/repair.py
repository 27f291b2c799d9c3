"""Accepting that content of the log is lost, so that its container takes requests again.

What is missing may have been acknowledged: offsets, ids and epochs were given out, and clients may know them. So none
that can have been given out is ever given out again:

    open segments of streams    are sealed at what is left of them, and get successors with the same keys
    open raw segments           continue after a hole as large as what is missing; the hole is a damaged range
    open transactions           are aborted: nobody knows whether they have all that was acknowledged
    prepared transactions       stay as they are, to be committed or aborted by name: they take nothing more
    ids                         continue above as many as the missing records can have given
    epochs of writers           the same, so that those who were fenced in what is missing stay fenced
    epoch of the container      continues above all that tier 2 has names of, by far
    sequences of the log        continue above all that can be missing, in a new file

All of this is one transaction of the checkpoint: before it the loss is known as ever, after it, it is accepted. Neither
the log nor tier 2 is changed. Accepting again finds nothing to accept.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from millrace.model.transaction import TransactionState
from millrace.server.container.flush.checkpointer import Checkpointer
from millrace.server.container.state.apply import apply_batch, pin_items
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.segment import DamagedRange, Segment
from millrace.server.errors import ServerError
from millrace.server.ownership import FolderOwnership
from millrace.server.tier2 import ChunkId, ChunkStorage, parse_chunk_name
from millrace.server.wal import AcceptedLoss
from millrace.wire import messages as m

from .ids import CONTAINER_EPOCHS_COUNT
from .loss import ACCEPTED_SOURCE, LogLoss
from .running import OpenContainer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SealedPart:
    """An open segment of a stream, to be sealed at its length and replaced by another."""

    segment_id: int
    name: str
    length: int


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets [start, end) of a raw segment which are given up."""

    segment_id: int
    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptancePlan:
    """What accepting a loss changes.

    Attributes:
        sealed: by stream, its open segments.
        holes: of the open raw segments.
        transactions: numbers of the open ones, which are aborted.
        writers_count: writers whose epochs jump.
    """

    sealed: dict[int, list[SealedPart]]
    holes: list[Hole]
    transactions: list[int]
    writers_count: int


async def published_chunks(storage: ChunkStorage) -> list[ChunkId]:
    """Return what the names of the chunks in tier 2 say.

    Raises:
        StorageError: tier 2 cannot be read.
    """
    found = [parse_chunk_name(chunk.name) for chunk in await storage.list("segments/")]
    return [chunk for chunk in found if chunk is not None]


def plan_acceptance(state: ContainerState, loss: LogLoss, chunks: list[ChunkId]) -> AcceptancePlan:
    """Return what accepting a loss changes in a state; blocks, for all of it is read.

    Args:
        state: as recovered from what is left.
        loss: what is missing.
        chunks: in tier 2. Their bytes were acknowledged, whether the state knows them or not.
    """
    ends: dict[int, int] = {}
    for chunk in chunks:
        ends[chunk.segment_id] = max(ends.get(chunk.segment_id, 0), chunk.end_offset)
    sealed: dict[int, list[SealedPart]] = {}
    holes: list[Hole] = []
    for segment in state.segments.values():
        if segment.sealed or segment.link is not None:
            continue
        if state.open_transactions.owner(segment.segment_id) is not None:
            continue  # a hole would be committed with it
        if segment.stream_id:
            part = SealedPart(segment.segment_id, segment.name, segment.length)
            sealed.setdefault(segment.stream_id, []).append(part)
        else:
            holes.append(_hole(segment, loss, ends))
    transactions = [
        transaction.number
        for transaction in state.open_transactions.by_number.values()
        if transaction.state is TransactionState.OPEN
    ]
    return AcceptancePlan(sealed=sealed, holes=holes, transactions=transactions, writers_count=len(state.writers))


def _hole(segment: Segment, loss: LogLoss, ends: Mapping[int, int]) -> Hole:
    end = max(segment.length + loss.size_bytes, ends.get(segment.segment_id, 0))
    return Hole(segment.segment_id, segment.name, segment.length, end)


async def accept_loss(opened: OpenContainer) -> AcceptancePlan:
    """Accept what the log of a container has lost, durably; the container is to be closed then, and opened again.

    Raises:
        StorageError, OSError: nothing was changed, or all of it: accepting again tells.
    """
    container, environment = opened.container, opened.environment
    state, loss, storage = container.state, container.loss, environment.storage
    assert loss is not None, "there is nothing to accept"
    is_remote = environment.ownership.log is not None
    await container.log.end_recovered()
    chunks = await published_chunks(storage)
    plan = plan_acceptance(state, loss, chunks)
    now_us = container.clock.unix_us()
    highest_id = max((chunk.segment_id for chunk in chunks), default=0)
    state.next_id = max(state.next_id, highest_id + 1) + loss.ids_count_max
    _apply_records(state, plan, loss, now_us=now_us)
    _add_holes(state, plan.holes)
    _raise_writer_epochs(state, loss)
    state.accepted = AcceptedLoss(state.sequence, container.log.report.used_file_number)
    state.log_capacity_bytes = 0  # there is no log after it yet, and none can be missing
    highest_epoch = max(environment.epoch, *(chunk.container_epoch for chunk in chunks), 0)
    checkpointer = Checkpointer(
        container,
        checkpoints=environment.checkpoints,
        storage=storage,
        # A manifest counts the epochs of its container, whatever the log has lost.
        ownership=environment.ownership if is_remote else FolderOwnership(highest_epoch + CONTAINER_EPOCHS_COUNT),
        owner=environment.owner,
    )
    await checkpointer.checkpoint()
    logger.warning("loss of the log accepted sequence=%d loss=%s", state.sequence, loss)
    try:
        # Older copies do not know of it.
        await checkpointer.copy()
    except (ServerError, OSError) as error:
        if is_remote:
            raise  # the next start has nothing but the store
        logger.warning("copy of the checkpoint not published, the server will do it error=%s", error)
    return plan


def _apply_records(state: ContainerState, plan: AcceptancePlan, loss: LogLoss, *, now_us: int) -> None:
    """Abort transactions and replace the open segments of streams, as a batch above all that can be missing."""
    records: list[m.Message] = [
        m.TransactionsEnded(ended_us=now_us, state=TransactionState.ABORTED, numbers=plan.transactions)
    ]
    records += [
        record
        for stream_id in plan.sealed
        if (record := _replacement(state, stream_id, loss, now_us=now_us)) is not None
    ]
    sequence = max(state.sequence, loss.last_sequence) + loss.batches_count_max
    with pin_items(state, records):
        apply_batch(state, records, sequence=sequence, wall_time_us=now_us, bytes_sink=state.hold)


def _replacement(state: ContainerState, stream_id: int, loss: LogLoss, *, now_us: int) -> m.StreamScaled | None:
    """Return the record that gives each open segment of a stream a successor; None for a stream that is sealed."""
    stream = state.streams.get(stream_id)
    if stream is None or stream.sealed:
        return None
    parts = stream.open_parts
    return m.StreamScaled(
        stream_id=stream_id,
        epoch=stream.epoch + loss.epochs_count_max,
        scaled_us=now_us,
        cause="loss of the log accepted",
        sealed_ids=[part.segment_id for part in parts],
        created=[m.SegmentRangeRecord(state.take_id(), part.key_range.low, part.key_range.last) for part in parts],
    )


def _add_holes(state: ContainerState, holes: list[Hole]) -> None:
    """Let raw segments continue after what is given up of them."""
    for hole in holes:
        with state.segments.pin([hole.segment_id]):
            segment = state.segments[hole.segment_id]
            segment.length = segment.next_offset = hole.end
            segment.damages.append(DamagedRange(hole.start, hole.end, ACCEPTED_SOURCE))
            if not segment.tail:
                segment.flushed_offset = hole.end
            segment.check()
            state.segments.changed(segment)


def _raise_writer_epochs(state: ContainerState, loss: LogLoss) -> None:
    """Let no epoch be given again that may have been given in what is missing."""
    for number in [writer.writer_number for writer in state.writers.values()]:
        with state.writers.pin([number]):
            writer = state.writers[number]
            writer.epoch += loss.epochs_count_max
            writer.admitted_epoch = writer.epoch
            state.writers.changed(writer)
