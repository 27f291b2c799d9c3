"""Accepting that content of the log is lost, or that the log contradicts itself, so that all requests are taken again.

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

Of a container whose log is complete, only damaged entities are touched (see `state.quarantine`), in the same way:

    open segments of streams    are sealed and replaced, one by one
    open raw segments           continue after all offsets that were given out
    open transactions           are aborted; an outcome stays damaged, since not all that was acknowledged is there
    parts that fit nowhere      are deleted
    writers                     get a higher epoch
    all others                  stay as they are

All of this is one transaction of the checkpoint: before it the loss is known as ever, after it, it is accepted. Neither
the log nor tier 2 is changed. Accepting again finds nothing to accept.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from millrace.model.transaction import TransactionState
from millrace.server.container.flush.checkpointer import Checkpointer
from millrace.server.container.state.apply import apply_batch, pin_items
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.quarantine import CONTAINER, EntityDamage
from millrace.server.container.state.segment import DamagedRange
from millrace.server.container.state.transaction import PART_NAME
from millrace.server.errors import ServerError
from millrace.server.ownership import FolderOwnership
from millrace.server.tier2 import ChunkId, ChunkStorage, parse_chunk_name
from millrace.server.wal import AcceptedLoss
from millrace.wire import messages as m

from .entity_cache import EntityCache
from .ids import CONTAINER_EPOCHS_COUNT
from .log_loss import ACCEPTED_SOURCE, LogLoss
from .running import OpenContainer

logger = logging.getLogger(__name__)

Item = TypeVar("Item")


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
        writers: numbers of those whose epochs jump.
        deleted: ids of parts of transactions that are over, which fit nowhere.
        damages: of entities that are accepted.
    """

    sealed: dict[int, list[SealedPart]]
    holes: list[Hole]
    transactions: list[int]
    writers: list[int]
    deleted: list[int]
    damages: list[EntityDamage]


async def published_chunks(storage: ChunkStorage) -> list[ChunkId]:
    """Return what the names of the chunks in tier 2 say.

    Raises:
        StorageError: tier 2 cannot be read.
    """
    found = [parse_chunk_name(chunk.name) for chunk in await storage.list("segments/")]
    return [chunk for chunk in found if chunk is not None]


def plan_acceptance(state: ContainerState, loss: LogLoss | None, chunks: list[ChunkId]) -> AcceptancePlan:
    """Return what accepting a loss, and the damages of entities, changes in a state; blocks, for all of it is read.

    Args:
        state: as recovered from what is left.
        loss: what is missing, None if nothing is: then only damaged entities are changed.
        chunks: in tier 2. Their bytes were acknowledged, whether the state knows them or not.
    """
    ends: dict[int, int] = {}
    for chunk in chunks:
        ends[chunk.segment_id] = max(ends.get(chunk.segment_id, 0), chunk.end_offset)
    sealed: dict[int, list[SealedPart]] = {}
    holes: list[Hole] = []
    damages = [damage for damage in state.quarantine if not damage.accepted]
    kinds = (*state.caches, CONTAINER)
    numbers = {kind: {damage.number for damage in damages if damage.kind == kind} for kind in kinds}
    damaged_end = {damage.number: damage.end for damage in damages if damage.kind == "segments"}
    deleted: list[int] = []
    for segment in state.segments.values() if loss is not None else _found(state.segments, damaged_end):
        if segment.segment_id in damaged_end and segment.name.startswith(PART_NAME) and segment.link is None:
            if state.open_transactions.owner(segment.segment_id) is None:
                deleted.append(segment.segment_id)
            continue
        if segment.sealed or segment.link is not None:
            continue
        if state.open_transactions.owner(segment.segment_id) is not None:
            continue  # a hole would be committed with it
        if segment.stream_id:
            part = SealedPart(segment.segment_id, segment.name, segment.length)
            sealed.setdefault(segment.stream_id, []).append(part)
        else:
            number = segment.segment_id
            lost_bytes = 0 if loss is None else loss.size_bytes
            end = max(segment.length + lost_bytes, ends.get(number, 0), damaged_end.get(number, 0))
            if end > segment.length:
                holes.append(Hole(number, segment.name, segment.length, end))
    transactions = [
        transaction.number
        for transaction in state.open_transactions.by_number.values()
        if transaction.number in numbers["transactions"]
        or (loss is not None and transaction.state is TransactionState.OPEN)
    ]
    writers = state.writers.values() if loss is not None else _found(state.writers, numbers["writers"])
    return AcceptancePlan(
        sealed=sealed,
        holes=holes,
        transactions=transactions,
        writers=[writer.writer_number for writer in writers],
        deleted=deleted,
        damages=damages,
    )


def _found(cache: EntityCache[Item], numbers: Iterable[int]) -> Iterator[Item]:
    """Yield those of some entities that exist."""
    for number in sorted(numbers):
        if (item := cache.get(number)) is not None:
            yield item


async def accept_loss(opened: OpenContainer) -> AcceptancePlan:
    """Accept, durably, what the log of a container has lost and which entities it contradicts.

    The container is to be closed then, and opened again.

    Raises:
        StorageError, OSError: nothing was changed, or all of it: accepting again tells.
    """
    container, environment = opened.container, opened.environment
    state, loss, storage = container.state, container.loss, environment.storage
    assert loss is not None or state.quarantine, "there is nothing to accept"
    is_remote = environment.ownership.log is not None
    if loss is not None:
        await container.log.end_recovered()
    chunks = await published_chunks(storage)
    plan = plan_acceptance(state, loss, chunks)
    now_us = container.clock.unix_us()
    if loss is not None:
        highest_id = max((chunk.segment_id for chunk in chunks), default=0)
        state.scalars.next_id = max(state.scalars.next_id, highest_id + 1) + loss.ids_count_max
    _release(state, plan.damages)
    records = _records(state, plan, loss, now_us=now_us)
    if loss is None:
        for record in records:
            await container.decide(record)
    else:
        # As a batch above all that can be missing.
        sequence = max(state.sequence, loss.last_sequence) + loss.batches_count_max
        with pin_items(state, records):
            apply_batch(state, records, sequence=sequence, wall_time_us=now_us, bytes_sink=state.hold)
    _add_holes(state, plan.holes)
    _raise_writer_epochs(state, plan.writers, by=1 if loss is None else loss.epochs_count_max)
    highest_epoch = environment.epoch
    if loss is not None:
        state.scalars.accepted = AcceptedLoss(state.sequence, container.log.report.used_file_number)
        state.scalars.log_capacity_bytes = 0  # there is no log after it yet, and none can be missing
        highest_epoch = max(environment.epoch, *(chunk.container_epoch for chunk in chunks), 0) + CONTAINER_EPOCHS_COUNT
    checkpointer = Checkpointer(
        container,
        checkpoints=environment.checkpoints,
        storage=storage,
        # A manifest counts the epochs of its container, whatever the log has lost.
        ownership=environment.ownership if is_remote else FolderOwnership(highest_epoch),
        owner=environment.owner,
    )
    await checkpointer.checkpoint()
    for damage in plan.damages:
        logger.warning("damage accepted damage=%s", damage)
    if loss is not None:
        logger.warning("log loss accepted sequence=%d loss=%s", state.sequence, loss)
    try:
        # Older copies do not know of it.
        await checkpointer.copy()
    except (ServerError, OSError) as error:
        if is_remote:
            raise  # the next start has nothing but the store
        logger.warning("checkpoint copy not published, the server will retry error=%s", error)
    return plan


def _release(state: ContainerState, damages: list[EntityDamage]) -> None:
    """Refuse damaged entities no more; but for outcomes of which not all is there."""
    for damage in damages:
        state.quarantine.discard(damage.kind, damage.number)
        if damage.kind == "transactions":
            transaction = state.transactions.get(damage.number)
            if transaction is not None and transaction.state.is_final:
                state.quarantine.add(damage._replace(accepted=1))


def _records(state: ContainerState, plan: AcceptancePlan, loss: LogLoss | None, *, now_us: int) -> list[m.Record]:
    """Return what aborts transactions, replaces the open segments of streams, and deletes parts that fit nowhere."""
    records: list[m.Record] = []
    if plan.transactions:
        records.append(m.TransactionsEnded(ended_us=now_us, state=TransactionState.ABORTED, numbers=plan.transactions))
    for stream_id, sealed in plan.sealed.items():
        replacement = _replacement(state, stream_id, sealed, loss, now_us=now_us)
        if replacement is not None:
            records.append(replacement)
    return records + [m.SegmentDeleted(segment_id) for segment_id in plan.deleted]


def _replacement(
    state: ContainerState, stream_id: int, sealed: list[SealedPart], loss: LogLoss | None, *, now_us: int
) -> m.StreamScaled | None:
    """Return the record that gives open segments of a stream successors; None for a stream that is sealed."""
    stream = state.streams.get(stream_id)
    if stream is None or stream.sealed:
        return None
    replaced = {part.segment_id for part in sealed}
    parts = [part for part in stream.open_parts if loss is not None or part.segment_id in replaced]
    if not parts:
        return None
    return m.StreamScaled(
        stream_id=stream_id,
        epoch=stream.epoch + (1 if loss is None else loss.epochs_count_max),
        scaled_us=now_us,
        cause="damage accepted" if loss is None else "loss of the log accepted",
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


def _raise_writer_epochs(state: ContainerState, numbers: list[int], *, by: int) -> None:
    """Let no epoch be given again that may have been given in what is missing."""
    for number in numbers:
        with state.writers.pin([number]):
            writer = state.writers[number]
            state.durable.writers.put(number, replace(writer.row, epoch=writer.row.epoch + by))
            writer.admit_as_durable()
