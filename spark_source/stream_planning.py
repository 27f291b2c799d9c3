"""Plans the next batch of one stream: cuts, ranges and lag, fetched from the server.

Everything here is called on the driver, by `planning`. Nothing is kept between calls; what must be remembered is in the
offsets, which Spark keeps.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from millrace.client.client import Client
from millrace.client.errors import SegmentNotFoundError, SegmentTruncatedError
from millrace.client.read.ranges import SegmentRange, ranges_between
from millrace.model.cut import HEAD, TAIL, CutChoice, PastCut, SavedKind, SavedPlace, StreamCut, TimeCut
from millrace.model.errors import CutInvalidError, CutOrderError, InvalidArgumentError
from millrace.model.lineage import StreamPart, parts_of_history
from millrace.model.position import START_MARK, Mark, Position

from .advance import of_each
from .errors import CheckpointError, DataLossError, MissingRange, OptionError
from .options import SourceOptions
from .snapshot import UNCOUNTED, Marks, StreamSnapshot, cut_of, uncounted


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How much is not read yet.

    Attributes:
        seconds: since the oldest of it was written, by the clocks of server and driver; 0 where nothing waits.
    """

    events: int
    size_bytes: int
    seconds: float


class StreamPlanner:
    """Plans for one stream over one client."""

    def __init__(self, client: Client, options: SourceOptions, stream: str) -> None:
        self.client = client
        self.options = options
        self.stream = stream

    async def fetch(self, *cuts: Iterable[int], tail: Mapping[int, Position] | None = None) -> StreamSnapshot:
        """Return the stream as it is now, with all that is known of the segments that some cuts name.

        It is one request, and one more where one of these segments is deleted.

        Args:
            tail: where it counts as ended, as of a moment before; it is counted here.

        Raises:
            StreamNotFoundError: the stream was deleted.
            SegmentTruncatedError: the tail given was truncated away since.
        """
        info = await self.client.stream_info(self.stream)
        listed = {segment.segment_id: segment for segment in info.segments}
        named = [*cuts, tail or ()]
        past: list[StreamPart] = []
        if not all(segment_id in listed for cut in named for segment_id in cut):
            past = parts_of_history(await self.client.stream_history(info.name))
        if tail is None:
            return StreamSnapshot(info, past=past)
        gone = [segment_id for segment_id in tail if segment_id not in listed]
        if gone:
            raise SegmentTruncatedError(f"{self.stream}: segments {gone} were truncated away since they were asked for")
        marks = await of_each(
            tail,
            lambda segment_id: self.client.segment_scan(segment_id).mark(
                position=tail[segment_id], tail=listed[segment_id].end
            ),
        )
        return StreamSnapshot(info, past=past, tail=marks)

    # --- cuts ---

    async def named(self, option: str, choice: CutChoice, snapshot: StreamSnapshot) -> StreamCut:
        """Return the cut that an option names, wherever the head of the stream is.

        Raises:
            OptionError: the cut does not fit the stream, or the stream has none of that name.
        """
        name = snapshot.stream.name
        if isinstance(choice, TimeCut):
            cut = await self.client.cut_at_time_in(snapshot.stream, choice, as_end=option == "endCut")
            return cut_of(name, snapshot.minimum(snapshot.clamped(cut), snapshot.tail))
        if choice is HEAD:
            return snapshot.stream.head()
        if choice is TAIL:
            return cut_of(name, snapshot.tail)
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
        is_bookmark = place.kind is SavedKind.BOOKMARK
        kept = self.client.bookmarks(self.stream) if is_bookmark else self.client.cursors(self.stream)
        saved = {each.name: each.cut for each in await kept.list()}
        if place.name not in saved:
            has = f"it has {', '.join(saved)[:200]}" if saved else "it has none"
            raise OptionError(option, f"{self.stream} has no {place.kind.value} {place.name!r}; {has}")
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

    async def resume(self, marks: Marks, snapshot: StreamSnapshot) -> tuple[dict[int, Mark], list[MissingRange]]:
        """Return where a query resumes that had come so far, and what was truncated away after that.

        What is missing is counted where that can be known. If the stream was deleted and created again, the query
        resumes at the head of the new one, where `restarts` allows that.

        Raises:
            CheckpointError: the place is none of this stream.
            DataLossError: something is missing, and `failOnDataLoss` is true.
        """
        if self.restarts(marks, snapshot):
            return await self._counted(snapshot.head, snapshot), []
        check_fits(marks, snapshot)
        begin = await self._counted(snapshot.maximum(marks, snapshot.head), snapshot)
        missing = [
            gap
            if gap.end_offset is None
            else replace(gap, events=begin[gap.segment_id].events - marks.get(gap.segment_id, START_MARK).events)
            for gap in snapshot.missing(marks, key=self.options.key)
        ]
        self._refuse(missing)
        return begin, missing

    def restarts(self, marks: Marks, snapshot: StreamSnapshot) -> bool:
        """Return whether a query that had come so far reads the stream from its head: it was deleted and created again.

        By default that is an error for a stream that the options name. One that matches a pattern may be deleted.
        """
        is_fatal = self.options.fail_on_data_loss and self.stream in self.options.selection.names
        return not is_fatal and snapshot.is_newer_than(marks)

    async def _counted(self, marks: Marks, snapshot: StreamSnapshot) -> dict[int, Mark]:
        """Return marks with the events before those counted that are not counted yet."""
        unknown = [segment_id for segment_id, mark in marks.items() if mark.events == UNCOUNTED]
        found = await of_each(
            unknown,
            lambda segment_id: self.client.segment_scan(segment_id).mark(
                position=marks[segment_id].position, tail=snapshot.end(segment_id)
            ),
        )
        return {**marks, **found}

    def _refuse(self, missing: Sequence[MissingRange]) -> None:
        if missing and self.options.fail_on_data_loss:
            raise DataLossError(self.stream, missing)

    # --- ranges ---

    def ranges(self, start: Marks, end: Marks, snapshot: StreamSnapshot) -> list[SegmentRange]:
        """Return the ranges that hold exactly the events between two cuts, of which no segment is deleted.

        Segments that were replaced come before their successors. Of a key, those that may hold it.
        """
        return ranges_between(
            cut_of(self.stream, start), cut_of(self.stream, end), snapshot.stream, key=self.options.key
        )

    # --- lag ---

    async def lag(self, start: Marks, end: Marks, snapshot: StreamSnapshot) -> Lag:
        """Return how much is between two cuts, in the segments that may hold the key."""
        starts, ends = snapshot.progress(start), snapshot.progress(end)
        lagging = [
            segment_id
            for segment_id, mark in starts.items()
            if mark.position < ends[segment_id].position and snapshot.holds(segment_id, self.options.key)
        ]
        # What successors hold is newer than what is left of those they replaced.
        oldest = [segment_id for segment_id in lagging if segment_id in start]
        written_us = await of_each(oldest, lambda segment_id: self._written_before(segment_id, starts[segment_id]))
        now_us = time.time() * 1_000_000
        first_us = min((moment for moment in written_us.values() if moment), default=now_us)
        return Lag(
            events=sum(ends[segment_id].events - starts[segment_id].events for segment_id in lagging),
            size_bytes=sum(ends[segment_id].offset - starts[segment_id].offset for segment_id in lagging),
            seconds=round(max(0.0, now_us - first_us) / 1_000_000, 3),
        )

    async def _written_before(self, segment_id: int, mark: Mark) -> int:
        """Return when the oldest event after a mark was written; 0 if that is not known, or it is truncated by now."""
        try:
            return await self.client.segment_scan(segment_id).written_before(offset=mark.offset)
        except (SegmentTruncatedError, SegmentNotFoundError):
            return 0


def check_fits(marks: Marks, snapshot: StreamSnapshot) -> None:
    """Check that a place of a checkpoint is one of a stream.

    Raises:
        CheckpointError: it is not.
    """
    try:
        snapshot.check(cut_of(snapshot.stream.name, marks))
    except CutInvalidError as error:
        raise CheckpointError(
            f"the checkpoint does not fit: {error}; was the stream deleted and made again? Set option"
            ' "failOnDataLoss" to "false" to read the new stream from its head.'
        ) from None
