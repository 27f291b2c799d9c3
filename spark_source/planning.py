"""What to read next: cuts, limits and ranges of one stream, asked from the server.

Everything here is called on the driver, by the batch reader and by the stream reader. Nothing is kept between calls;
what must be remembered is in the offsets, which Spark keeps.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from millrace.client.client import Client
from millrace.client.errors import SegmentNotFoundError, SegmentTruncatedError, StreamNotFoundError
from millrace.client.read.splits import SegmentRange, slices_between
from millrace.model.cut import HEAD, StreamCut
from millrace.model.errors import CutInvalidError, InvalidArgumentError, InvalidNameError
from millrace.model.lineage import parts_of_history
from millrace.model.position import START_MARK, Mark
from millrace.model.stream import StreamInfo

from .epochs import UNCOUNTED, Epochs, Marks, cut_of, uncounted
from .errors import CheckpointError, DataLossError, MissingRange, OptionError
from .limits import share
from .options import CutChoice, SourceOptions, TimeCut
from .positions import RangePartition, StreamOffset, pack

T = TypeVar("T")

RUNS_COUNT_MAX: Final = 3
"""Of one plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """What is durable and not yet in a batch.

    Attributes:
        age_s: since the oldest of it was written, by the clocks of server and driver; 0 where nothing waits.
    """

    events: int
    size_bytes: int
    age_s: float


async def settled(plan: Callable[[], Awaitable[T]]) -> T:
    """Return what a plan returns; run it again where a truncation came between its questions: the next run knows of it.

    Raises like the plan, and what the last run raised where truncations do not end.
    """
    for _ in range(RUNS_COUNT_MAX - 1):
        with suppress(SegmentTruncatedError, SegmentNotFoundError):
            return await plan()
    return await plan()


class Planner:
    """Plans for one stream over one client."""

    def __init__(self, client: Client, options: SourceOptions) -> None:
        self._client = client
        self._options = options

    async def fetch(self, *cuts: Iterable[int]) -> Epochs:
        """Return the stream as it is now, with all that is known of the segments that some cuts name.

        It is one request, and one more where one of these segments is deleted.

        Raises:
            OptionError: there is no such stream.
        """
        info = await self._info()
        listed = {segment.segment_id for segment in info.segments}
        if all(segment_id in listed for cut in cuts for segment_id in cut):
            return Epochs(info)
        return Epochs(info, past=parts_of_history(await self._client.stream_history(info.name)))

    async def _info(self) -> StreamInfo:
        try:
            return await self._client.stream_info(self._options.stream)
        except StreamNotFoundError:
            raise OptionError("stream", f"there is no stream {self._options.stream}") from None
        except InvalidNameError as error:
            raise OptionError("stream", str(error)) from None

    # --- cuts ---

    async def named(self, option: str, choice: CutChoice, epochs: Epochs) -> StreamCut:
        """Return the cut that an option names, wherever the head of the stream is.

        Raises:
            OptionError: the cut does not fit the stream.
        """
        if isinstance(choice, TimeCut):
            cut = await self._client.cut_at_time_in(epochs.stream, choice.unix_us)
            return cut_of(cut.stream, epochs.later(uncounted(cut), epochs.head))
        if not isinstance(choice, StreamCut):
            return epochs.stream.head() if choice is HEAD else epochs.stream.tail()
        try:
            epochs.check(choice)
        except CutInvalidError as error:
            raise OptionError(option, str(error)) from None
        return choice

    async def place(self, option: str, choice: CutChoice, epochs: Epochs) -> tuple[StreamCut, list[MissingRange]]:
        """Return the cut that an option names, at or after the head, and what is missing before it.

        Raises:
            OptionError: the cut does not fit the stream.
            DataLossError: it is before the truncation, and `failOnDataLoss` is true.
        """
        cut = uncounted(await self.named(option, choice, epochs))
        missing = epochs.missing(cut)
        self._refuse(missing)
        return cut_of(epochs.stream.name, epochs.later(cut, epochs.head)), missing

    async def clamped(self, option: str, choice: CutChoice, epochs: Epochs) -> StreamCut:
        """As `place`, for a cut before which missing events do not matter."""
        cut = await self.named(option, choice, epochs)
        return cut_of(cut.stream, epochs.later(uncounted(cut), epochs.head))

    async def checked_marks(self, option: str, cut: StreamCut, epochs: Epochs) -> dict[int, Mark]:
        """Return the marks of a cut that an option names, between head and tail.

        Raises:
            OptionError: a position is after the last event of its block.
        """
        try:
            return await self._counted(uncounted(cut), epochs)
        except InvalidArgumentError as error:
            raise OptionError(option, str(error)) from None

    async def resume(self, offset: StreamOffset, epochs: Epochs) -> tuple[dict[int, Mark], list[MissingRange]]:
        """Return where a query resumes, and what was truncated away before that, counted where that can be known.

        Raises:
            CheckpointError: the offset is none of this stream.
            DataLossError: something is missing, and `failOnDataLoss` is true.
        """
        check_fits(offset, epochs)
        begin = await self._counted(epochs.later(offset.marks, epochs.head), epochs)
        missing = [
            gap
            if gap.end_offset is None
            else replace(gap, events=begin[gap.segment_id].events - offset.marks.get(gap.segment_id, START_MARK).events)
            for gap in epochs.missing(offset.marks)
        ]
        self._refuse(missing)
        return begin, missing

    async def _counted(self, marks: Marks, epochs: Epochs) -> dict[int, Mark]:
        """Return marks with the events before those counted that are not counted yet."""
        unknown = [segment_id for segment_id, mark in marks.items() if mark.events == UNCOUNTED]
        found = await asyncio.gather(
            *(
                self._client.segment_scan(segment_id).mark(
                    position=marks[segment_id].position, tail=epochs.end(segment_id)
                )
                for segment_id in unknown
            )
        )
        return {**marks, **dict(zip(unknown, found, strict=True))}

    def _refuse(self, missing: Sequence[MissingRange]) -> None:
        if missing and self._options.fail_on_data_loss:
            raise DataLossError(self._options.stream, missing)

    # --- limits ---

    async def advance(
        self,
        start: Marks,
        bound: Marks,
        epochs: Epochs,
        *,
        max_events: int | None,
        max_bytes: int | None,
        turn: int,
    ) -> dict[int, Mark]:
        """Return how far a batch goes from one cut towards another within the limits.

        A batch reads the segments that `start` names. Where these were replaced and are read to their ends, the cut
        moves on to the starts of their successors, which are for the next batch. So all events of one key that a batch
        holds are in one segment.

        Events are counted exactly, and a batch may end inside a block for them. Bytes are those of blocks as they are
        stored; a batch ends at borders of blocks for them, and passes its limit only where a single block does.

        Args:
            turn: the number of the batch; with each another segment comes first, and gets at least one event and one
                block, so that none starves.
        """
        start = epochs.go_on(start, bound=bound)
        ends = epochs.progress(bound)
        reached = {segment_id: max(mark, ends[segment_id]) for segment_id, mark in start.items()}
        waiting = [
            segment_id for segment_id in sorted(start) if start[segment_id].position < reached[segment_id].position
        ]
        if not waiting:
            return dict(start)
        lead = waiting[turn % len(waiting)]
        if max_events is not None:
            reached = await self._advance_events(start, reached, waiting, limit=max_events, lead=lead)
        if max_bytes is not None:
            by_bytes = await self._advance_bytes(start, reached, waiting, limit=max_bytes, lead=lead)
            reached = {segment_id: min(mark, by_bytes[segment_id]) for segment_id, mark in reached.items()}
        return epochs.go_on(reached, bound=bound)

    async def _advance_events(
        self, start: Marks, end: Marks, waiting: Iterable[int], *, limit: int, lead: int
    ) -> dict[int, Mark]:
        counts = {segment_id: end[segment_id].events - start[segment_id].events for segment_id in waiting}
        shares = share(limit, counts, lead=lead)
        marks = await asyncio.gather(
            *(
                self._client.segment_scan(segment_id).after_events(
                    start=start[segment_id], end=end[segment_id], count=shares[segment_id]
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
            first = await self._client.segment_scan(lead).after_block(start=start[lead], end=end[lead])
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
        return await self._client.segment_scan(segment_id).after_bytes(start=start, end=end, size_bytes=size_bytes)

    # --- ranges ---

    async def partitions(self, start: StreamCut, end: StreamCut, epochs: Epochs) -> list[RangePartition]:
        """Return the partitions that hold exactly the events between two cuts, of which no segment is deleted.

        Segments that were replaced come before their successors.
        """
        planned: list[list[SegmentRange]] = await asyncio.gather(
            *(
                self._client.plan_slice(part, max_bytes=self._options.partition_bytes)
                for part in slices_between(start, end, epochs.stream)
            )
        )
        ranges = [part for parts in planned for part in parts]
        return pack(ranges, partition_bytes=self._options.partition_bytes)

    # --- lag ---

    async def lag(self, reached: Marks, ahead: Marks, epochs: Epochs) -> Lag:
        """Return how much is between two cuts."""
        starts, ends = epochs.progress(reached), epochs.progress(ahead)
        lagging = [segment_id for segment_id, mark in starts.items() if mark.position < ends[segment_id].position]
        # What successors hold is younger than what is left of those they replaced.
        written_us = await asyncio.gather(
            *(self._written_before(segment_id, starts[segment_id]) for segment_id in lagging if segment_id in reached)
        )
        known_us = [moment for moment in written_us if moment]
        return Lag(
            events=sum(ends[segment_id].events - starts[segment_id].events for segment_id in lagging),
            size_bytes=sum(ends[segment_id].offset - starts[segment_id].offset for segment_id in lagging),
            age_s=max(0.0, time.time() - min(known_us) / 1_000_000) if known_us else 0.0,
        )

    async def _written_before(self, segment_id: int, mark: Mark) -> int:
        """Return when the oldest event after a mark was written; 0 if that is not known, or it is truncated by now."""
        try:
            return await self._client.segment_scan(segment_id).written_before(offset=mark.offset)
        except (SegmentTruncatedError, SegmentNotFoundError):
            return 0


def check_fits(offset: StreamOffset, epochs: Epochs) -> None:
    """Check that an offset of a checkpoint is one of a stream.

    Raises:
        CheckpointError: it is not.
    """
    try:
        epochs.check(offset.cut)
    except CutInvalidError as error:
        raise CheckpointError(f"the checkpoint does not fit: {error}; was the stream deleted and made again?") from None
