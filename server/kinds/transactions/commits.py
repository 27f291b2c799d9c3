"""Plans a commit on the admitted view: where each part is merged, and which epochs begin.

A commit seals nothing, copies nothing and routes nothing again, unless its streams were scaled during the transaction:
its parts are merged by reference where their keys go now (`millrace.model.commit_plan`). All of it is one record, so a
reader finds all or nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from millrace.model.commit_plan import plan_commit
from millrace.model.transaction import (
    IMPLICIT_BRANCH,
    BranchesError,
    TransactionPart,
    TransactionState,
    check_branches,
)
from millrace.server.container.admission import check_event_count
from millrace.server.container.container import SegmentContainer
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.segment import Segment
from millrace.server.container.state.transaction import Transaction, TransactionRow
from millrace.server.errors import BranchMismatchError, StreamNotFoundError
from millrace.server.kinds.streams.part_count import check_part_count
from millrace.wire import messages as m

TAIL_POSITIONS_COUNT_MAX: Final = 4096
"""In the reply to a commit; who wants more asks for the tails."""

_Source = tuple[TransactionPart, Segment]


@dataclass(slots=True)
class Commit:
    """The effect of a commit, as in its record.

    Attributes:
        sources: the segments of its parts.
        targets: the segments into which they are merged, by id; without those created by it.
    """

    dropped: list[int]
    sources: list[Segment]
    targets: dict[int, Segment] = field(default_factory=dict)
    epochs: list[m.CommitEpochRecord] = field(default_factory=list)
    parts: list[m.CommittedPart] = field(default_factory=list)
    cuts: list[m.TransactionCut] = field(default_factory=list)
    cursors: list[m.MovedCursor] = field(default_factory=list)
    producers: list[m.CommittedProducer] = field(default_factory=list)

    def record(self, transaction: Transaction, *, digest: bytes, committed_us: int) -> m.TransactionCommitted:
        """Return the record of it."""
        return m.TransactionCommitted(
            number=transaction.number,
            committed_us=committed_us,
            name=transaction.name,
            digest=digest,
            epochs=self.epochs,
            parts=self.parts,
            dropped=self.dropped,
            cuts=self.cuts,
            cursors=self.cursors,
            producers=self.producers,
        )

    @property
    def required(self) -> m.Required:
        """What has to be pinned for the record: its transaction pins itself and its parts until it ends."""
        return m.Required(
            segments=list(self.targets),
            streams=[epoch.stream_id for epoch in self.epochs] + [cursor.stream_id for cursor in self.cursors],
            producers=[producer.number for producer in self.producers],
        )


def chosen_parts(
    state: ContainerState, transaction: Transaction, named: Mapping[int, int], *, drops_others: bool
) -> list[_Source]:
    """Return the parts with events that a commit takes, in the order in which they are merged.

    Args:
        named: the branches that are committed, each with how many events it must have.
        drops_others: whether what other branches have is deleted; else there must be no others.

    Raises:
        BranchMismatchError: a branch has another number of events, or one is left out.
    """
    of_branch: dict[int, list[_Source]] = {}
    stored: dict[int, int] = {}
    for part in transaction.admitted_parts.values():
        segment = state.admitted_segment(part.segment_id)
        if segment is not None:
            of_branch.setdefault(part.branch, []).append((part, segment))
            stored[part.branch] = stored.get(part.branch, 0) + segment.next_event_count
    try:
        check_branches(named, stored=stored, drops_others=drops_others, may_have=IMPLICIT_BRANCH)
    except BranchesError as error:
        raise BranchMismatchError(str(error), subject=transaction.subject) from None
    return [source for branch in named for source in of_branch.get(branch, ()) if source[1].next_offset]


def plan_transaction(
    container: SegmentContainer, transaction: Transaction, named: Mapping[int, int], *, drops_others: bool
) -> Commit:
    """Return what the commit of a transaction does; nothing about its streams as a whole is on its way.

    The arguments are those of `chosen_parts`.

    Raises:
        BranchMismatchError: as `chosen_parts`.
        InvalidArgumentError: a segment would have too many events, or a stream too many segments.
        StreamNotFoundError, SegmentError: damage has taken what it would be merged into.
    """
    sources = chosen_parts(container.state, transaction, named, drops_others=drops_others)
    of_stream: dict[int, list[_Source]] = {}
    for source in sources:
        of_stream.setdefault(source[0].stream_id, []).append(source)
    taken = {part.segment_id: segment for part, segment in sources}
    is_all = len(taken) == len(transaction.admitted_parts)
    commit = Commit(
        dropped=[] if is_all else [number for number in transaction.admitted_parts if number not in taken],
        sources=list(taken.values()),
    )
    for stream_id, parts in of_stream.items():
        _add_stream(container, commit, stream_id, parts)
    return commit


def _add_stream(container: SegmentContainer, commit: Commit, stream_id: int, sources: Sequence[_Source]) -> None:
    """Add what a commit does to one stream."""
    state = container.state
    stream = state.streams.get(stream_id)
    if stream is None:
        raise StreamNotFoundError(f"stream {stream_id} does not exist")
    plan = plan_commit(
        [part for part, _ in sources], open_parts=stream.open_parts, epoch=stream.epoch, take_id=state.take_id
    )
    created = {segment_id for epoch in plan.epochs for segment_id, _ in epoch.created}
    if created:
        check_part_count(stream, len(created))
    # By target: where the next part is merged, and how many events the parts before it have.
    ends: dict[int, int] = {}
    event_counts: dict[int, int] = {}
    for part, source in sources:
        size, event_count = source.next_offset, source.next_event_count
        target_id = plan.targets[part.segment_id]
        if target_id not in ends:
            end, merged_count = 0, 0
            if target_id not in created:
                target = commit.targets[target_id] = container.segment(target_id)
                target.check_appendable()
                end = target.next_offset
        else:
            end, merged_count = ends[target_id], event_counts[target_id]
        if target_id not in created:
            check_event_count(commit.targets[target_id], merged_count + event_count)
        commit.parts.append(m.CommittedPart(part.segment_id, target_id, end, size, event_count))
        ends[target_id] = end + size
        event_counts[target_id] = merged_count + event_count
    commit.epochs += [
        m.CommitEpochRecord(
            stream_id,
            epoch.number,
            list(epoch.sealed_ids),
            [m.SegmentRangeRecord(number, keys.low, keys.last) for number, keys in epoch.created],
        )
        for epoch in plan.epochs
    ]
    last_epoch = plan.epochs[-1].number if plan.epochs else stream.epoch
    positions = [m.CutPosition(*end) for end in sorted(ends.items())]
    commit.cuts.append(m.TransactionCut(stream_id, last_epoch, positions))


def admit_commit(state: ContainerState, commit: Commit) -> None:
    """Move the admitted view of segments and streams to after a commit that was queued."""
    state.open_transactions.decided_totals[TransactionState.COMMITTED] += 1
    for source in commit.sources:
        source.leaving = True
    for source_id in commit.dropped:
        dropped = state.admitted_segment(source_id)
        if dropped is not None:
            dropped.leaving = True
    for part in commit.parts:
        target = commit.targets.get(part.target_id)
        if target is not None:
            assert state.segments.pinned(part.target_id) is target, "the commit was planned on another object"
            target.next_offset += part.size
            target.next_event_count += part.event_count
    created = {segment_id for epoch in commit.epochs for segment_id, _, _ in epoch.created}
    for epoch in commit.epochs:
        stream = state.streams.pinned(epoch.stream_id)
        assert stream is not None, "the commit was planned on it"
        stream.admitted_epoch = epoch.epoch
        for segment_id in set(epoch.sealed_ids) - created:
            sealed = state.segments.pinned(segment_id)
            if sealed is not None:
                sealed.closing = True


def tails_after(state: ContainerState, transaction: TransactionRow, commit: Commit) -> list[m.StreamTail]:
    """Return where the streams of a transaction end right after its commit, which was admitted in this step.

    What is admitted now is durable when the commit is. Nothing is returned where the commit begins epochs, or where
    that is too much for its reply.
    """
    tails: list[m.StreamTail] = []
    if commit.epochs:
        return tails
    for routed in transaction.streams:
        stream = state.streams.get(routed.stream_id)
        if stream is None:  # damage has taken it
            return []
        places: list[m.CutPosition] = []
        for part in stream.open_parts:
            end = commit.targets.get(part.segment_id) or state.segments.get(part.segment_id)
            if end is None:
                return []
            places.append(m.CutPosition(part.segment_id, end.next_offset))
        tails.append(m.StreamTail(stream.name, stream.stream_id, places))
    return tails if sum(len(tail.positions) for tail in tails) <= TAIL_POSITIONS_COUNT_MAX else []
