"""Decisions about streams: each is one record in the log of their home container.

The segments of a stream are created, sealed, truncated and deleted by the record of the stream itself, so that all of
them change together, also when the server is killed between any two instructions.
"""

from asyncio import Future, gather
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from millrace.model.exclusive_writer import ExclusiveWriter
from millrace.model.key_range import KeyRange, covers_once, equal_ranges
from millrace.model.limits import SEGMENTS_PER_STREAM_MAX
from millrace.model.lineage import StreamPart
from millrace.model.names import checked_name
from millrace.model.policy import ScalingKind, StreamConfig
from millrace.server.container.container import SegmentContainer
from millrace.server.container.state.labels import config_of
from millrace.server.container.state.segment import Segment
from millrace.server.container.state.stream import Stream
from millrace.server.errors import (
    InvalidArgumentError,
    StreamNotFoundError,
    StreamNotSealedError,
    StreamSealedError,
)
from millrace.server.kinds.aborts import abort_all_on
from millrace.wire import messages as m
from millrace.wire.limits import KIB

from .cuts import (
    POSITIONS_PER_STREAM_COUNT_MAX,
    check_borders,
    check_cut,
    check_cut_keys,
    check_retained,
    check_room_beside,
    check_room_for_cuts,
)
from .part_count import check_part_count
from .resizing import resize
from .truncation import truncate_at

_DECISIONS: Final = (
    m.StreamCreated, m.StreamScaled, m.StreamUpdated, m.StreamSealed, m.StreamStartMoved, m.StreamDeleted,
)  # fmt: skip
"""About a stream as a whole; each is queued under its name."""
_NOBODY: Final = ExclusiveWriter(number=0, epoch=0, writer_id="", since_us=0)
CONFIGURATION_SIZE_BYTES_MAX: Final = 16 * KIB
TAILS_COUNT_MAX: Final = 1000
"""Streams whose tails are told in one reply, which must fit one frame, as must `POSITIONS_PER_STREAM_COUNT_MAX`."""
PAGE_COUNT: Final = SEGMENTS_PER_STREAM_MAX
"""Replaced segments in a reply, unless more were replaced in one epoch: with all open ones, they must fit one frame."""


class StreamCommands:
    """Creates, describes, seals, truncates and deletes streams."""

    def __init__(self, container: SegmentContainer) -> None:
        self._container = container
        self._state = container.state

    def find(self, name: str) -> Stream:
        """Return a stream by name.

        Raises:
            StreamNotFoundError: there is none.
        """
        stream = self._state.streams.find(name)
        if stream is None:
            raise self._container.absent(StreamNotFoundError("the stream does not exist", subject=name))
        return stream

    def describe(
        self,
        stream: Stream,
        *,
        created: bool = False,
        replaced_from: int = m.NOT_REPLACED,
        page_of: int = 0,
        is_next: bool = False,
    ) -> m.StreamInfo:
        """Return what is known of a stream and its segments, as a message.

        Args:
            replaced_from, page_of, is_next: as in GET_STREAM. Without them: the open segments only.
        """
        if replaced_from == m.AT_HEAD:
            last, parts = stream.head()
            # As of that epoch: a reader asks what has replaced them when it has read them.
            listed, next_epoch = [replace(part, sealed_epoch=0) for part in parts], 0
            is_sealed = stream.sealed and last == stream.epoch
        else:
            last = page_of if is_next else stream.epoch
            page, next_epoch = self._page(stream, first=replaced_from, last=last)
            listed, is_sealed = [*(() if is_next else stream.open_parts), *page], stream.sealed
        exclusive = self._state.durable.exclusive_writers.get(stream.stream_id) or _NOBODY
        return m.StreamInfo(
            created=int(created),
            stream_id=stream.stream_id,
            created_us=stream.created_us,
            epoch=last,
            sealed=int(is_sealed),
            name=stream.name,
            configuration=stream.configuration,
            segments=[self._described(part) for part in listed],
            exclusive_number=exclusive.number,
            exclusive_epoch=exclusive.epoch,
            exclusive_id=exclusive.writer_id,
            exclusive_since_us=exclusive.since_us,
            replaced_from=0 if replaced_from == m.AT_HEAD else replaced_from,
            next_epoch=next_epoch,
            replaced_count=stream.replaced_count(last),
        )

    def describe_page(self, stream: Stream, message: m.GetStream) -> m.StreamInfo:
        """Return the page of a stream that is asked for."""
        return self.describe(
            stream,
            replaced_from=message.replaced_from,
            page_of=message.page_of,
            is_next=bool(message.is_next),
        )

    def page_ids(self, stream: Stream, message: m.GetStream) -> list[int]:
        """Return the ids of the replaced segments that the answer to a request has."""
        if message.replaced_from == m.AT_HEAD:
            return [part.segment_id for part in stream.head()[1]]
        page, _ = self._page(
            stream, first=message.replaced_from, last=message.page_of if message.is_next else stream.epoch
        )
        return [part.segment_id for part in page]

    def _page(self, stream: Stream, *, first: int, last: int) -> tuple[list[StreamPart], int]:
        """Return the segments of a page that were replaced, and in which epoch the next page begins, 0 for none.

        All segments that were replaced together are on one page.
        """
        found = stream.replaced_parts(first, last) if first <= last else []
        if len(found) <= PAGE_COUNT:
            return found, 0
        end = found[PAGE_COUNT - 1].sealed_epoch
        page = [part for part in found[: PAGE_COUNT + SEGMENTS_PER_STREAM_MAX] if part.sealed_epoch <= end]
        return page, 0 if len(page) == len(found) else end + 1

    def _described(self, part: StreamPart) -> m.StreamSegment:
        segment = self._container.segment(part.segment_id)
        return m.StreamSegment(
            part.segment_id,
            part.key_range.low,
            part.key_range.last,
            part.epoch,
            part.sealed_epoch,
            segment.start_offset,
            segment.length,
            segment.event_count,
            int(segment.sealed),
            segment.start_index,
        )

    def tails(self, names: Sequence[str]) -> list[m.StreamTail]:
        """Return where streams end, all at this moment.

        Raises:
            StreamNotFoundError: there is no stream of one of these names.
            InvalidArgumentError: they are more than one reply can hold.
        """
        if len(names) > TAILS_COUNT_MAX:
            raise InvalidArgumentError(f"a request asks for the tails of at most {TAILS_COUNT_MAX} streams")
        tails = []
        for name in names:
            stream = self.find(name)
            places = [(part.segment_id, self._container.segment(part.segment_id).length) for part in stream.open_parts]
            tails.append(m.StreamTail(name, stream.stream_id, [m.CutPosition(*place) for place in places]))
        if sum(len(tail.positions) for tail in tails) > POSITIONS_PER_STREAM_COUNT_MAX:
            raise InvalidArgumentError(
                f"a request asks for the tails of at most {POSITIONS_PER_STREAM_COUNT_MAX} open segments"
            )
        return tails

    async def create(
        self, name: str, *, segment_count: int, configuration: str, cursors: Sequence[str] = ()
    ) -> tuple[Stream, bool]:
        """Create a stream with that many segments of equal key ranges; return it and whether it is new.

        Args:
            cursors: names of cursors at its head. They are there from the start, so retention waits for all of them.

        Raises:
            InvalidNameError: the name is not of the form scope/name.
            InvalidArgumentError: the number of segments, the configuration or the cursors are out of bounds.
        """
        checked_name(name, kind="stream name")
        if not 1 <= segment_count <= SEGMENTS_PER_STREAM_MAX:
            raise InvalidArgumentError(
                f"a stream has 1 to {SEGMENTS_PER_STREAM_MAX} segments, not {segment_count}", subject=name
            )
        _checked_configuration(configuration, name)
        check_cut_keys([(m.CutKind.CURSOR, cursor) for cursor in cursors], name)
        check_room_for_cuts([segment_count] * len(cursors), name)
        await self.settled(name)
        stream = self._state.streams.find(name)
        if stream is not None:
            return stream, False
        record = m.StreamCreated(
            stream_id=self._state.take_id(),
            created_us=self._container.clock.unix_us(),
            name=name,
            configuration=configuration,
            segments=[
                m.SegmentRangeRecord(self._state.take_id(), key_range.low, key_range.high - 1)
                for key_range in equal_ranges(segment_count)
            ],
            cursors=[m.CursorName(cursor) for cursor in cursors],
        )
        await self._container.decide(record, name)
        return self.find(name), True

    async def seal(self, name: str, *, force: bool = False) -> Stream:
        """Let the stream take no more events, forever; repeating it is fine. Its open transactions are aborted.

        Args:
            force: abort prepared ones, too.

        Raises:
            StreamNotFoundError: there is none.
            TransactionPreparedError: a transaction over the stream is prepared.
        """
        await self.settled(name)
        stream = self.find(name)
        if not stream.sealed:
            # Before the record of the seal: a crash between the two leaves them aborted, and the stream open.
            abort_all_on(self._container, stream, force=force)
            decided = self._container.decide(m.StreamSealed(stream.stream_id), name)
            for segment in self._segments(stream.segment_ids):
                segment.closing = True
            await decided
        return stream

    async def scale(
        self, name: str, *, sealed_ids: Sequence[int], ranges: Sequence[m.KeyRangeRecord], cause: str
    ) -> Stream:
        """Replace segments by new ones that cover the same keys, in one record: seen wholly or not at all.

        Writers to the replaced ones are told that they are sealed and find the successors; readers read those after
        their predecessors. Repeating a scale that was done is a no-op.

        Raises:
            StreamNotFoundError: there is none.
            StreamSealedError: the stream takes no more events.
            InvalidArgumentError: the ranges do not cover exactly what the sealed segments cover, or a segment is not
                an open one of the stream.
        """
        await self.settled(name)
        stream = self.find(name)
        if self._was_done(stream, sealed_ids, ranges):
            return stream
        if stream.sealed:
            raise StreamSealedError("the stream is sealed", subject=name)
        await self._scale(stream, sealed_ids=sealed_ids, ranges=ranges, cause=cause)
        return stream

    def _scale(
        self, stream: Stream, *, sealed_ids: Sequence[int], ranges: Sequence[m.KeyRangeRecord], cause: str
    ) -> Future[None]:
        """Decide a scale of a stream about which nothing else is on its way."""
        self._check_scale(stream, sealed_ids, ranges)
        record = m.StreamScaled(
            stream_id=stream.stream_id,
            epoch=stream.epoch + 1,
            scaled_us=self._container.clock.unix_us(),
            cause=cause,
            sealed_ids=list(sealed_ids),
            created=[m.SegmentRangeRecord(self._state.take_id(), low, last) for low, last in sorted(ranges)],
        )
        decided = self._container.decide(record, stream.name)
        for segment in self._segments(sealed_ids):
            segment.closing = True
        return decided

    async def settled(self, name: str) -> None:
        """Wait until no decision about the stream is on its way: the next one is made on what is durable.

        Raises:
            DecisionLostError: the log failed first.
        """
        while self.is_being_decided(name):
            await self._container.in_flight.settled()

    def is_being_decided(self, name: str) -> bool:
        """Return whether a decision about a stream as a whole, which need not exist, is on its way."""
        stream = self._state.streams.find(name)
        if stream is None:
            return self._container.in_flight.is_any_queued(_DECISIONS, name)
        return self.is_moving(stream)

    def is_moving(self, stream: Stream) -> bool:
        """Return whether a decision about a stream as a whole is on its way."""
        # A commit that begins epochs belongs to its transaction, and is queued under that.
        return stream.admitted_epoch != stream.epoch or self._container.in_flight.is_any_queued(_DECISIONS, stream.name)

    def _segments(self, segment_ids: Iterable[int]) -> Iterator[Segment]:
        """Yield those of some segments that were not lost to damage."""
        for segment_id in segment_ids:
            segment = self._state.segments.get(segment_id)
            if segment is not None:
                yield segment

    async def update(self, name: str, *, configuration: str) -> Stream:
        """Give a stream another configuration.

        Where that asks for a fixed number of segments which it did not ask for before, the stream has that number then;
        also where the stream was scaled since, if nothing else is asked for. Repeating it is fine.

        Raises:
            StreamNotFoundError: there is none.
            InvalidArgumentError: the configuration is too long, or asks for something that makes no sense.
        """
        wanted = _checked_configuration(configuration, name)
        await self.settled(name)
        stream = self.find(name)
        decided: list[Future[None]] = []
        scaling = wanted.scaling
        is_other = configuration != stream.configuration
        if (
            scaling.kind is ScalingKind.FIXED
            and not stream.sealed
            # A change of something else leaves a stream alone that was scaled by hand.
            and (not is_other or scaling != config_of(stream.configuration).scaling)
            and (plan := resize(stream.open_parts, scaling.segment_count)) is not None
        ):
            ranges = [m.KeyRangeRecord(low, last) for low, last in plan.ranges]
            decided.append(self._scale(stream, sealed_ids=plan.sealed_ids, ranges=ranges, cause=plan.reason))
        if is_other:
            # Second: who finds the new configuration, also after a crash, finds the segments that it asks for.
            decided.append(self._container.decide(m.StreamUpdated(stream.stream_id, configuration), name))
        await gather(*decided)
        return stream

    async def save_cuts(self, stream_name: str, cuts: Sequence[m.NamedCut]) -> None:
        """Keep cuts under names, in place of those of that kind and name; all of them in one record.

        Raises:
            StreamNotFoundError: there is none.
            CutInvalidError: a cut does not cover the key space once, or goes through an append.
            CutTruncatedError: a cut is before the start of the stream.
            OffsetBeyondEndError: a position is beyond the end of its segment.
            InvalidArgumentError: a name, a kind or the number of cuts is out of bounds.
        """
        if not cuts:
            raise InvalidArgumentError("no cut is given", subject=stream_name)
        check_cut_keys([(cut.kind, cut.name) for cut in cuts], stream_name)
        check_room_for_cuts([len(cut.positions) for cut in cuts], stream_name)
        for cut in cuts:
            check_retained(self._container, self.find(stream_name), cut.positions)
            await check_borders(self._container, cut.positions)
        # Checked again: much may have happened meanwhile.
        stream = self.find(stream_name)
        for cut in cuts:
            check_retained(self._container, stream, cut.positions)
        check_room_beside(self._container, stream, cuts)
        await self._container.decide(
            m.CutsSaved(stream_id=stream.stream_id, saved_us=self._container.clock.unix_us(), cuts=list(cuts)),
            stream.stream_id,
        )

    async def forget_cut(self, stream_name: str, name: str, *, kind: int, saved_us: int | None = None) -> bool:
        """Forget a saved cut; return False if there is none of that kind and name.

        Args:
            saved_us: only if it was saved then, and not again.

        Raises:
            StreamNotFoundError: there is no such stream.
        """
        stream_id = self.find(stream_name).stream_id
        while self._container.queued(m.CutsSaved, stream_id) or self._container.queued(m.CutForgotten, stream_id):
            await self._container.in_flight.settled()
        cut = self.find(stream_name).cuts.get((kind, name))
        if cut is None or saved_us not in (None, cut.saved_us):
            await self._container.in_flight.settled()  # of what failed with the log, nobody knows
            return False
        await self._container.decide(m.CutForgotten(stream_id, kind, name), stream_id)
        return True

    async def truncate(self, name: str, positions: Sequence[m.SavedPosition]) -> Stream:
        """Move the start of the stream to a cut; segments that are wholly before it are deleted.

        The start is exact. The bytes of a block that the cut goes through stay until the whole block is truncated.

        Where the cut enters segments at their beginnings, those which they replaced stay, empty, until a later cut: a
        consumer that is at their ends has lost nothing.

        Raises:
            StreamNotFoundError: there is none.
            CutInvalidError: the cut does not cover the key space exactly once, or goes through an append.
            CutTruncatedError: the cut names a segment that was truncated away.
            OffsetBeyondEndError: a position is beyond the end of its segment.
        """
        check_cut(self._container, self.find(name), positions)
        positions = await check_borders(self._container, positions)
        # Checked again: much may have happened meanwhile.
        stream = self.find(name)
        check_cut(self._container, stream, positions)
        await truncate_at(self._container, stream, positions)
        return stream

    async def delete(self, name: str) -> bool:
        """Delete a sealed stream with everything in it; return False if there is none.

        Raises:
            StreamNotSealedError: it is not sealed.
        """
        await self.settled(name)
        stream = self._state.streams.find(name)
        if stream is None:
            await self._container.in_flight.settled()  # of what failed with the log, nobody knows
            return False
        if not stream.sealed:
            raise StreamNotSealedError("only a sealed stream can be deleted; seal it first", subject=name)
        decided = self._container.decide(m.StreamDeleted(stream.stream_id), name)
        for segment in self._segments(stream.segment_ids):
            segment.leaving = True
        await decided
        return True

    def _was_done(self, stream: Stream, sealed_ids: Sequence[int], ranges: Sequence[m.KeyRangeRecord]) -> bool:
        """Return whether an epoch of the stream replaced just these segments by just these ranges."""
        parts = [stream.part(segment_id) for segment_id in sealed_ids]
        if any(part is not None and not part.sealed_epoch for part in parts):
            return False
        # Where it was truncated since, only the history has the epoch.
        known = {part.sealed_epoch for part in parts if part is not None}
        epochs = [epoch for number in known if (epoch := stream.epoch_record(number))] if known else stream.epochs[1:]
        wanted = (sorted(sealed_ids), sorted((low, last) for low, last in ranges))
        return any(
            (sorted(epoch.sealed_ids), sorted((low, last) for _, low, last in epoch.created)) == wanted
            for epoch in epochs
        )

    def _check_scale(self, stream: Stream, sealed_ids: Sequence[int], ranges: Sequence[m.KeyRangeRecord]) -> None:
        open_parts = {part.segment_id: part for part in stream.open_parts}
        strangers = [segment_id for segment_id in sealed_ids if segment_id not in open_parts]
        if strangers or not sealed_ids or len(set(sealed_ids)) != len(sealed_ids):
            raise InvalidArgumentError(
                f"segments to seal must be open ones of the stream, each once: {sorted(open_parts)}",
                subject=stream.name,
            )
        # The others stay as they are; with them the new ranges must be what the open segments were: all keys, once.
        others = [part.key_range for part in open_parts.values() if part.segment_id not in set(sealed_ids)]
        if any(last < low for low, last in ranges) or not covers_once(
            [*others, *(KeyRange.inclusive(low, last) for low, last in ranges)]
        ):
            raise InvalidArgumentError(
                "the new ranges must cover exactly the keys of the segments to seal, each key once", subject=stream.name
            )
        if len(others) + len(ranges) > SEGMENTS_PER_STREAM_MAX:
            raise InvalidArgumentError(f"a stream has at most {SEGMENTS_PER_STREAM_MAX} segments", subject=stream.name)
        check_part_count(stream, len(ranges))


def _checked_configuration(configuration: str, name: str) -> StreamConfig:
    if len(configuration.encode()) > CONFIGURATION_SIZE_BYTES_MAX:
        raise InvalidArgumentError(f"a configuration has at most {CONFIGURATION_SIZE_BYTES_MAX} bytes", subject=name)
    return StreamConfig.from_json(configuration)
