"""What to read next: cuts, limits and ranges of one stream, asked from the server.

Everything here is called on the driver, by the batch reader and by the stream reader. Nothing is kept between calls;
what must be remembered is in the offsets, which Spark keeps.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from millrace.client.client import Client
from millrace.client.errors import SegmentNotFoundError, SegmentTruncatedError, StreamNotFoundError
from millrace.client.read.ranges import ranges_between
from millrace.model.cut import HEAD, TAIL, CutChoice, PastCut, SavedKind, SavedPlace, StreamCut, TimeCut
from millrace.model.errors import CutInvalidError, CutOrderError, InvalidArgumentError, InvalidNameError
from millrace.model.lineage import parts_of_history
from millrace.model.position import START_MARK, Mark
from millrace.model.shares import shares_of

from .errors import CheckpointError, DataLossError, MissingRange, OptionError
from .limits import share
from .options import SourceOptions
from .positions import RangePartition, StreamOffset, pack
from .snapshot import UNCOUNTED, Marks, StreamSnapshot, cut_of, uncounted

T = TypeVar("T")


class Planner:
    """Plans for one stream over one client."""

    def __init__(self, client: Client, options: SourceOptions) -> None:
        self.client = client
        self._scan = client.segment_scan
        self.options = options

    async def fetch(self, *cuts: Iterable[int]) -> StreamSnapshot:
        """Return the stream as it is now, with all that is known of the segments that some cuts name.

        It is one request, and one more where one of these segments is deleted.

        Raises:
            StreamNotFoundError: the stream was deleted.
        """
        info = await self.client.stream_info(self.options.stream)
        listed = {segment.segment_id for segment in info.segments}
        if all(segment_id in listed for cut in cuts for segment_id in cut):
            return StreamSnapshot(info)
        return StreamSnapshot(info, past=parts_of_history(await self.client.stream_history(info.name)))

    async def fetch_named(self, *cuts: Iterable[int]) -> StreamSnapshot:
        """As `fetch`, where the option that names the stream is used for the first time.

        Raises:
            OptionError: there is no such stream.
        """
        try:
            return await self.fetch(*cuts)
        except StreamNotFoundError:
            raise OptionError("stream", f"there is no stream {self.options.stream}") from None
        except InvalidNameError as error:
            raise OptionError("stream", str(error)) from None

    # --- cuts ---

    async def named(self, option: str, choice: CutChoice, snapshot: StreamSnapshot) -> StreamCut:
        """Return the cut that an option names, wherever the head of the stream is.

        Raises:
            OptionError: the cut does not fit the stream, or the stream has none of that name.
        """
        if isinstance(choice, TimeCut):
            cut = await self.client.cut_at_time_in(snapshot.stream, choice, as_end=option == "endCut")
            return cut_of(cut.stream, snapshot.clamped(cut))
        if choice is HEAD:
            return snapshot.stream.head()
        if choice is TAIL:
            return snapshot.stream.tail()
        assert not isinstance(choice, PastCut), "the options have made it a time"
        cut = await self._saved(option, choice) if isinstance(choice, SavedPlace) else choice
        try:
            snapshot.check(cut)
        except CutInvalidError as error:
            raise OptionError(option, str(error)) from None
        return cut

    async def _saved(self, option: str, place: SavedPlace) -> StreamCut:
        """Return the cut that the server keeps under a name.

        Raises:
            OptionError: it keeps none.
        """
        stream = self.options.stream
        is_bookmark = place.kind is SavedKind.BOOKMARK
        kept = self.client.bookmarks(stream) if is_bookmark else self.client.cursors(stream)
        saved = {each.name: each.cut for each in await kept.list()}
        if place.name not in saved:
            has = f"it has {', '.join(saved)[:200]}" if saved else "it has none"
            raise OptionError(option, f"{stream} has no {place.kind.value} {place.name!r}; {has}")
        return saved[place.name]

    def check_order(self, start: StreamCut, end: StreamCut, snapshot: StreamSnapshot) -> None:
        """Check the cuts of `startCut` and `endCut`, wherever the head is.

        Raises:
            OptionError: the start is after the end.
        """
        name = snapshot.stream.name
        first, last = (cut_of(name, snapshot.clamped(cut)) for cut in (start, end))
        try:
            snapshot.stream.check_order(first, last, key=self.options.key)
        except CutOrderError as error:
            raise OptionError("startCut", f"is after endCut: {error}") from None

    async def place(self, option: str, choice: CutChoice, snapshot: StreamSnapshot) -> tuple[Marks, list[MissingRange]]:
        """Return the cut that an option names, at or after the head, uncounted, and what is missing before it.

        Raises:
            OptionError: the cut does not fit the stream.
            DataLossError: it is before the truncation, and `failOnDataLoss` is true.
        """
        cut = await self.named(option, choice, snapshot)
        missing = snapshot.missing(uncounted(cut), key=self.options.key)
        self._refuse(missing)
        return snapshot.clamped(cut), missing

    async def counted(self, option: str, marks: Marks, snapshot: StreamSnapshot) -> dict[int, Mark]:
        """Return marks between head and tail, from a cut that an option names, with the events before them counted.

        Raises:
            OptionError: a position is after the last event of its block.
        """
        try:
            return await self._counted(marks, snapshot)
        except InvalidArgumentError as error:
            raise OptionError(option, str(error)) from None

    async def resume(
        self, offset: StreamOffset, snapshot: StreamSnapshot
    ) -> tuple[dict[int, Mark], list[MissingRange]]:
        """Return where a query resumes, and what was truncated away before that, counted where that can be known.

        Raises:
            CheckpointError: the offset is none of this stream.
            DataLossError: something is missing, and `failOnDataLoss` is true.
        """
        check_fits(offset, snapshot)
        begin = await self._counted(snapshot.maximum(offset.marks, snapshot.head), snapshot)
        missing = [
            gap
            if gap.end_offset is None
            else replace(gap, events=begin[gap.segment_id].events - offset.marks.get(gap.segment_id, START_MARK).events)
            for gap in snapshot.missing(offset.marks, key=self.options.key)
        ]
        self._refuse(missing)
        return begin, missing

    async def _counted(self, marks: Marks, snapshot: StreamSnapshot) -> dict[int, Mark]:
        """Return marks with the events before those counted that are not counted yet."""
        unknown = [segment_id for segment_id, mark in marks.items() if mark.events == UNCOUNTED]
        found = await _of_each(
            unknown,
            lambda segment_id: self._scan(segment_id).mark(
                position=marks[segment_id].position, tail=snapshot.end(segment_id)
            ),
        )
        return {**marks, **found}

    def _refuse(self, missing: Sequence[MissingRange]) -> None:
        if missing and self.options.fail_on_data_loss:
            raise DataLossError(self.options.stream, missing)

    # --- limits ---

    async def advance(
        self,
        start: Marks,
        bound: Marks,
        snapshot: StreamSnapshot,
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
        start = snapshot.enter_successors(start, bound=bound)
        ends = snapshot.progress(bound)
        planned_end = {segment_id: max(mark, ends[segment_id]) for segment_id, mark in start.items()}
        waiting = [
            segment_id for segment_id in sorted(start) if start[segment_id].position < planned_end[segment_id].position
        ]
        if not waiting:
            return dict(start)
        lead = waiting[turn % len(waiting)]
        if max_events is not None:
            planned_end = await self._advance_events(start, planned_end, waiting, limit=max_events, lead=lead)
        if max_bytes is not None:
            by_bytes = await self._advance_bytes(start, planned_end, waiting, limit=max_bytes, lead=lead)
            planned_end = {segment_id: min(mark, by_bytes[segment_id]) for segment_id, mark in planned_end.items()}
        return snapshot.enter_successors(planned_end, bound=bound)

    async def _advance_events(
        self, start: Marks, end: Marks, waiting: Iterable[int], *, limit: int, lead: int
    ) -> dict[int, Mark]:
        counts = {segment_id: end[segment_id].events - start[segment_id].events for segment_id in waiting}
        shares = share(limit, counts, lead=lead)
        planned_end = await _of_each(
            shares,
            lambda segment_id: self._scan(segment_id).after_events(
                start=start[segment_id], end=end[segment_id], count=shares[segment_id]
            ),
        )
        return {**start, **planned_end}

    async def _advance_bytes(
        self, start: Marks, end: Marks, waiting: Iterable[int], *, limit: int, lead: int
    ) -> dict[int, Mark]:
        sizes = {segment_id: end[segment_id].offset - start[segment_id].offset for segment_id in waiting}
        if sum(sizes.values()) <= limit:
            return dict(end)

        def after_bytes(segment_id: int, size_bytes: int) -> Awaitable[Mark]:
            return self._scan(segment_id).after_bytes(
                start=start[segment_id], end=end[segment_id], size_bytes=size_bytes
            )

        first = await after_bytes(lead, shares_of(limit, sizes)[lead])
        if first == start[lead]:
            first = await self._scan(lead).after_block(start=start[lead], end=end[lead])
        left = limit - (first.offset - start[lead].offset)
        del sizes[lead]
        shares = shares_of(max(0, left), sizes)
        others = await _of_each(shares, lambda segment_id: after_bytes(segment_id, shares[segment_id]))
        return {**start, lead: first, **others}

    # --- ranges ---

    async def partitions(self, start: Marks, end: Marks, snapshot: StreamSnapshot) -> list[RangePartition]:
        """Return the partitions that hold exactly the events between two cuts, of which no segment is deleted.

        Segments that were replaced come before their successors.
        """
        name = snapshot.stream.name
        parts = ranges_between(cut_of(name, start), cut_of(name, end), snapshot.stream, key=self.options.key)
        size_bytes = self.options.partition_bytes
        planned = await asyncio.gather(*(self.client.split_range(part, max_bytes=size_bytes) for part in parts))
        return pack([part for parts in planned for part in parts], partition_bytes=size_bytes)

    # --- lag ---

    async def lag(self, start: Marks, end: Marks, snapshot: StreamSnapshot) -> dict[str, float]:
        """Return how much is between two cuts, in events and bytes, and the seconds since the oldest was written.

        The seconds are by the clocks of server and driver; 0 where nothing waits.
        """
        starts, ends = snapshot.progress(start), snapshot.progress(end)
        lagging = [segment_id for segment_id, mark in starts.items() if mark.position < ends[segment_id].position]
        # What successors hold is newer than what is left of those they replaced.
        oldest = [segment_id for segment_id in lagging if segment_id in start]
        written_us = await _of_each(oldest, lambda segment_id: self._written_before(segment_id, starts[segment_id]))
        now_us = time.time() * 1_000_000
        first_us = min((moment for moment in written_us.values() if moment), default=now_us)
        return {
            "events": sum(ends[segment_id].events - starts[segment_id].events for segment_id in lagging),
            "bytes": sum(ends[segment_id].offset - starts[segment_id].offset for segment_id in lagging),
            "seconds": round(max(0.0, now_us - first_us) / 1_000_000, 3),
        }

    async def _written_before(self, segment_id: int, mark: Mark) -> int:
        """Return when the oldest event after a mark was written; 0 if that is not known, or it is truncated by now."""
        try:
            return await self._scan(segment_id).written_before(offset=mark.offset)
        except (SegmentTruncatedError, SegmentNotFoundError):
            return 0


def check_fits(offset: StreamOffset, snapshot: StreamSnapshot) -> None:
    """Check that an offset of a checkpoint is one of a stream.

    Raises:
        CheckpointError: it is not.
    """
    try:
        snapshot.check(offset.cut)
    except CutInvalidError as error:
        raise CheckpointError(f"the checkpoint does not fit: {error}; was the stream deleted and made again?") from None


async def _of_each(segment_ids: Iterable[int], ask: Callable[[int], Awaitable[T]]) -> dict[int, T]:
    """Return what is answered for each of some segments, asked at once."""
    asked = list(segment_ids)
    return dict(zip(asked, await asyncio.gather(*map(ask, asked)), strict=True))
