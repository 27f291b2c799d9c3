"""What to read next: cuts, limits and ranges of one stream, asked from the server.

Everything here is called on the driver, by the batch reader and by the stream reader. Nothing is kept between calls;
what must be remembered is in the offsets, which Spark keeps.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from millrace.client.batch import SegmentRange, plan_segment
from millrace.client.client import Client
from millrace.client.cuts import HEAD, StreamCut
from millrace.client.errors import (
    CutInvalidError,
    InvalidArgumentError,
    InvalidNameError,
    StreamNotFoundError,
)
from millrace.client.seeking import Mark, after_block, after_bytes, after_events, mark_of, written_before
from millrace.client.session import Session
from millrace.client.streams import StreamInfo

from .errors import CheckpointError, DataLossError, MissingRange, OptionError
from .limits import share
from .options import CutChoice, SourceOptions, TimeCut
from .positions import Marks, RangePartition, StreamOffset, pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """What is durable and not yet in a batch.

    Attributes:
        age_s: since the oldest of it was written, by the clocks of server and driver; 0 where nothing waits.
    """

    events: int
    size_bytes: int
    age_s: float


class Planner:
    """Plans for one stream over one client and session."""

    def __init__(self, client: Client, session: Session, options: SourceOptions) -> None:
        self._client = client
        self._session = session
        self._options = options

    async def info(self) -> StreamInfo:
        """Return the stream as it is now.

        Raises:
            OptionError: there is none.
        """
        try:
            return await self._client.stream_info(self._options.stream)
        except StreamNotFoundError:
            raise OptionError("stream", f"there is no stream {self._options.stream}") from None
        except InvalidNameError as error:
            raise OptionError("stream", str(error)) from None

    # --- cuts ---

    async def named(self, option: str, choice: CutChoice, info: StreamInfo) -> StreamCut:
        """Return the cut that an option names, wherever the head of the stream is.

        Raises:
            OptionError: the cut does not fit the stream.
        """
        if isinstance(choice, TimeCut):
            return within(await self._client.stream_cut(info.name).at_time(choice.unix_us), info)
        if not isinstance(choice, StreamCut):
            return info.head() if choice is HEAD else info.tail()
        try:
            check_fits(choice, info)
        except CutInvalidError as error:
            raise OptionError(option, str(error)) from None
        return choice

    async def place(self, option: str, choice: CutChoice, info: StreamInfo) -> tuple[StreamCut, list[MissingRange]]:
        """Return the cut that an option names, at or behind the head, and what is missing in front of it.

        Raises:
            OptionError: the cut does not fit the stream.
            DataLossError: it lies behind the truncation, and `failOnDataLoss` is true.
        """
        cut = await self.named(option, choice, info)
        kept, missing = behind_head({segment_id: Mark(*place, -1) for segment_id, place in cut.positions}, info)
        self._refuse(missing)
        return StreamCut.of(info.name, {segment_id: mark.place for segment_id, mark in kept.items()}), missing

    async def clamped(self, option: str, choice: CutChoice, info: StreamInfo) -> StreamCut:
        """As `place`, for a cut in front of which nothing is missed."""
        return within(await self.named(option, choice, info), info)

    async def marks(self, cut: StreamCut, info: StreamInfo) -> dict[int, Mark]:
        """Return the marks of a cut between head and tail.

        Raises:
            InvalidArgumentError: a position lies behind the last event of its block.
        """
        tail = tail_marks(info)
        marks = await asyncio.gather(
            *(
                mark_of(self._session, segment_id, place=place, tail=tail[segment_id])
                for segment_id, place in cut.positions
            )
        )
        return dict(zip((segment_id for segment_id, _ in cut.positions), marks, strict=True))

    async def checked_marks(self, option: str, cut: StreamCut, info: StreamInfo) -> dict[int, Mark]:
        """As `marks`, for a cut of an option."""
        try:
            return await self.marks(cut, info)
        except InvalidArgumentError as error:
            raise OptionError(option, str(error)) from None

    async def resume(self, offset: StreamOffset, info: StreamInfo) -> tuple[dict[int, Mark], list[MissingRange]]:
        """Return where a query goes on, and what was truncated away in front of it, counted.

        Raises:
            CheckpointError: the offset is none of this stream.
            DataLossError: something is missing, and `failOnDataLoss` is true.
        """
        try:
            check_fits(offset.cut, info)
        except CutInvalidError as error:
            raise CheckpointError(
                f"the checkpoint does not fit: {error}; was the stream deleted and made again?"
            ) from None
        kept, missing = behind_head(offset.marks, info)
        counted: list[MissingRange] = []
        tail = tail_marks(info)
        for gap in missing:
            place = kept[gap.segment_id].place
            mark = await mark_of(self._session, gap.segment_id, place=place, tail=tail[gap.segment_id])
            kept[gap.segment_id] = mark
            counted.append(
                MissingRange(
                    segment_id=gap.segment_id,
                    start_offset=gap.start_offset,
                    start_index=gap.start_index,
                    end_offset=gap.end_offset,
                    events=mark.events - offset.marks[gap.segment_id].events,
                )
            )
        self._refuse(counted)
        return kept, counted

    def _refuse(self, missing: Sequence[MissingRange]) -> None:
        if missing and self._options.fail_on_data_loss:
            raise DataLossError(self._options.stream, missing)

    # --- limits ---

    async def advance(
        self, start: Marks, end: Marks, *, max_events: int | None, max_bytes: int | None, turn: int
    ) -> dict[int, Mark]:
        """Return how far a batch goes from `start` towards `end` within the limits.

        Events are counted exactly, and a batch may end inside a block for them. Bytes are those of blocks as they are
        stored; a batch ends at borders of blocks for them, and passes its limit only where a single block does.

        Args:
            turn: the number of the batch; with each another segment comes first, and gets at least one event and one
                block, so that none waits for ever behind others.
        """
        waiting = [segment_id for segment_id in sorted(start) if start[segment_id].place < end[segment_id].place]
        if not waiting:
            return dict(start)
        lead = waiting[turn % len(waiting)]
        reached = dict(end)
        if max_events is not None:
            reached = await self._advance_events(start, reached, waiting, limit=max_events, lead=lead)
        if max_bytes is not None:
            by_bytes = await self._advance_bytes(start, reached, waiting, limit=max_bytes, lead=lead)
            reached = {segment_id: min(mark, by_bytes[segment_id]) for segment_id, mark in reached.items()}
        return {segment_id: max(mark, reached[segment_id]) for segment_id, mark in start.items()}

    async def _advance_events(
        self, start: Marks, end: Marks, waiting: Iterable[int], *, limit: int, lead: int
    ) -> dict[int, Mark]:
        counts = {segment_id: end[segment_id].events - start[segment_id].events for segment_id in waiting}
        shares = share(limit, counts, lead=lead)
        marks = await asyncio.gather(
            *(
                after_events(
                    self._session, segment_id, start=start[segment_id], end=end[segment_id], count=shares[segment_id]
                )
                for segment_id in shares
            )
        )
        return {**start, **dict(zip(shares, marks, strict=True))}

    async def _advance_bytes(
        self, start: Marks, end: Marks, waiting: Iterable[int], *, limit: int, lead: int
    ) -> dict[int, Mark]:
        sizes = {segment_id: end[segment_id].offset - start[segment_id].offset for segment_id in waiting}
        if sum(sizes.values()) <= limit:
            return dict(end)
        lead_share = share(limit, sizes)[lead]
        first = await self._after_bytes(lead, start[lead], end[lead], size_bytes=lead_share)
        if first == start[lead]:
            first = await after_block(self._session, lead, start=start[lead], end=end[lead])
        reached = {**start, lead: first}
        left = limit - (first.offset - start[lead].offset)
        others = {segment_id: size for segment_id, size in sizes.items() if segment_id != lead}
        shares = share(max(0, left), others)
        marks = await asyncio.gather(
            *(
                self._after_bytes(segment_id, start[segment_id], end[segment_id], size_bytes=size)
                for segment_id, size in shares.items()
            )
        )
        return {**reached, **dict(zip(shares, marks, strict=True))}

    async def _after_bytes(self, segment_id: int, start: Mark, end: Mark, *, size_bytes: int) -> Mark:
        return await after_bytes(self._session, segment_id, start=start, end=end, size_bytes=size_bytes)

    # --- ranges ---

    async def partitions(self, start: StreamCut, end: StreamCut) -> list[RangePartition]:
        """Return the partitions that hold exactly the events between two cuts of the segments that `start` names."""
        ends = end.places
        planned: list[list[SegmentRange]] = await asyncio.gather(
            *(
                plan_segment(
                    self._session,
                    segment_id,
                    start=place,
                    end=ends[segment_id],
                    max_bytes=self._options.partition_bytes,
                )
                for segment_id, place in start.positions
            )
        )
        ranges = [part for parts in planned for part in parts]
        return pack(ranges, partition_bytes=self._options.partition_bytes)

    # --- lag ---

    async def lag(self, reached: Marks, end: Marks) -> Lag:
        """Return what lies between two marks of each segment."""
        behind = [segment_id for segment_id, mark in reached.items() if mark.place < end[segment_id].place]
        written_us = await asyncio.gather(
            *(written_before(self._session, segment_id, offset=reached[segment_id].offset) for segment_id in behind)
        )
        known_us = [moment for moment in written_us if moment]
        return Lag(
            events=sum(end[segment_id].events - reached[segment_id].events for segment_id in behind),
            size_bytes=sum(end[segment_id].offset - reached[segment_id].offset for segment_id in behind),
            age_s=max(0.0, time.time() - min(known_us) / 1_000_000) if known_us else 0.0,
        )


def tail_marks(info: StreamInfo) -> dict[int, Mark]:
    """Return the marks of the tail."""
    return {segment.segment_id: Mark(segment.length, 0, segment.event_count) for segment in info.segments}


def behind_head(marks: Marks, info: StreamInfo) -> tuple[dict[int, Mark], list[MissingRange]]:
    """Return the marks moved to the head where they lie in front of it, and the ranges between.

    A moved mark has a count of -1, which stands for unknown.
    """
    kept: dict[int, Mark] = {}
    missing: list[MissingRange] = []
    for segment in info.segments:
        mark = marks[segment.segment_id]
        if mark.offset < segment.start_offset:
            missing.append(
                MissingRange(
                    segment_id=segment.segment_id,
                    start_offset=mark.offset,
                    start_index=mark.event_index,
                    end_offset=segment.start_offset,
                )
            )
            mark = Mark(segment.start_offset, 0, -1)
        kept[segment.segment_id] = mark
    return kept, missing


def within(cut: StreamCut, info: StreamInfo) -> StreamCut:
    """Return the cut moved between head and tail of a stream, as another answer of the server described them."""
    head, tail = info.head().places, info.tail().places
    return StreamCut.of(
        info.name,
        {segment_id: min(max(place, head[segment_id]), tail[segment_id]) for segment_id, place in cut.positions},
    )


def check_fits(cut: StreamCut, info: StreamInfo) -> None:
    """Check that a cut names the segments of a stream, and no place beyond its end.

    Raises:
        CutInvalidError: it does not.
    """
    segments = {segment.segment_id: segment for segment in info.segments}
    if cut.stream != info.name:
        raise CutInvalidError(f"a cut of {cut.stream} cannot be used for {info.name}")
    if set(cut.places) != set(segments):
        raise CutInvalidError(f"the cut names segments {sorted(cut.places)}, {info.name} has {sorted(segments)}")
    for segment_id, (offset, event_index) in cut.positions:
        length = segments[segment_id].length
        if offset > length or (offset == length and event_index):
            raise CutInvalidError(f"{offset}.{event_index} lies beyond the end of segment {segment_id}, {length}")
