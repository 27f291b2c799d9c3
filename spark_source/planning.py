"""Plans the next batch of all streams of a query, from the plans of each stream.

Everything here is called on the driver, by the batch reader and by the stream reader. Nothing is kept between calls;
the state is in the offsets, which Spark keeps.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from millrace.client.client import Client
from millrace.client.errors import SegmentNotFoundError, SegmentTruncatedError, StreamNotFoundError
from millrace.client.read.ranges import SegmentRange
from millrace.client.read.segment_scan import INDEX_SPACING_BYTES
from millrace.model.cut import TAIL, StreamCut
from millrace.model.errors import InvalidArgumentError
from millrace.model.position import Mark

from .advance import advance
from .errors import MissingRange, OptionError
from .link import Link
from .options import SourceOptions
from .positions import Places, RangePartition, pack
from .snapshot import StreamSnapshot
from .stream_planning import StreamPlanner

PARTITION_SIZE_BYTES: Final = 64 << 20
"""The most bytes of a batch task by default; a task of a streaming query reads all of its segment."""

Snapshots = Mapping[str, StreamSnapshot]
"""Current streams by name."""
Bounds = tuple[StreamCut, StreamCut]

RUNS_COUNT_MAX: Final = 3
"""Of one plan."""

T = TypeVar("T")


class Planner:
    """Plans for all streams of the options, over one client."""

    def __init__(self, client: Client, options: SourceOptions) -> None:
        self.client = client
        self.options = options

    def of(self, stream: str) -> StreamPlanner:
        """Return the planner of one of the streams."""
        return StreamPlanner(self.client, self.options, stream)

    async def fetch(self, *cuts: Mapping[str, Collection[int]]) -> dict[str, StreamSnapshot]:
        """Return all current streams of the options; if there are several, with their tails as of one moment.

        Args:
            cuts: the segments that cuts name, by stream.

        Raises:
            StreamNotFoundError: a named stream does not exist.
        """
        selection = self.options.selection
        if len(selection.names) == 1 and not selection.patterns:
            (name,) = selection.names
            return {name: await self.of(name).fetch(*(cut.get(name, ()) for cut in cuts))}
        tails = await self.client.stream_cuts([*selection.names, *selection.patterns])
        found = await asyncio.gather(*(self._fetch_with(tail, cuts) for tail in tails.values()))
        return {name: snapshot for name, snapshot in zip(tails, found, strict=True) if snapshot is not None}

    async def _fetch_with(
        self, tail: StreamCut, cuts: Sequence[Mapping[str, Collection[int]]]
    ) -> StreamSnapshot | None:
        """Return a stream with a given tail; None if it was deleted since, and only matched a pattern."""
        try:
            return await self.of(tail.stream).fetch(*(cut.get(tail.stream, ()) for cut in cuts), tail=tail.places)
        except StreamNotFoundError:
            if tail.stream in self.options.selection.names:
                raise
            return None

    async def fetch_first(self) -> dict[str, StreamSnapshot]:
        """Like `fetch`, for the first use of the options that name streams and cuts.

        Raises:
            OptionError: a stream does not exist, or no stream matches, or there are too many.
        """
        options = self.options
        cuts = [
            {cut.stream: cut.places for cut in choices} if isinstance(choices, tuple) else {}
            for choices in (options.start_cut, options.end_cut)
        ]
        option = "streamPattern" if options.selection.patterns else "stream"
        try:
            found = await self.fetch(*cuts)
        except StreamNotFoundError as error:
            name = error.subject or ", ".join(options.selection.names)
            raise OptionError("stream", f"there is no stream {name}") from None
        except InvalidArgumentError as error:
            raise OptionError(option, str(error)) from None
        if not found:
            raise OptionError(option, f"there is no stream that matches {', '.join(options.selection.patterns)}")
        return found

    # --- bounds ---

    async def bounds(self) -> tuple[dict[str, StreamSnapshot], dict[str, Bounds]]:
        """Return the streams and the cuts of the options as of now, wherever the heads are.

        Raises:
            OptionError: a stream does not exist, a cut does not fit it, or the start is after the end.
        """
        snapshots = await self.fetch_first()
        found = await asyncio.gather(*(self._bounds(self.of(name), each) for name, each in snapshots.items()))
        return snapshots, dict(zip(snapshots, found, strict=True))

    async def _bounds(self, planner: StreamPlanner, snapshot: StreamSnapshot) -> Bounds:
        first, last = self.options.start_of(planner.stream), self.options.end_of(planner.stream)
        start = await planner.named("startCut", first, snapshot)
        end = await planner.named("endCut", TAIL if last is None else last, snapshot)
        # The tail moves: a query that began at it, and is resumed from its checkpoint, may have passed its end by now.
        if first is not TAIL:
            planner.check_order(start, end, snapshot)
        return start, end

    async def resume(
        self, places: Places, snapshots: Snapshots
    ) -> tuple[dict[str, dict[int, Mark]], dict[str, list[MissingRange]]]:
        """Return where a query resumes from its places in the remaining streams, and what is missing of each.

        Raises:
            CheckpointError: a place is not in its stream.
            DataLossError: something is missing, and `failOnDataLoss` is true.
        """
        names = [name for name in places if name in snapshots]
        found = await asyncio.gather(*(self.of(name).resume(places[name], snapshots[name]) for name in names))
        begins = {name: begin for name, (begin, _) in zip(names, found, strict=True)}
        return begins, {name: missing for name, (_, missing) in zip(names, found, strict=True)}

    # --- limits ---

    async def advance(
        self,
        start: Places,
        bound: Places,
        snapshots: Snapshots,
        *,
        max_events: int | None,
        max_bytes: int | None,
        turn: int,
    ) -> dict[str, dict[int, Mark]]:
        """Return the end of a batch, from one cut of each stream towards another, within the limits of all together.

        A batch reads the segments that `start` names. If these were replaced and are read to their ends, the cut moves
        on to the starts of their successors, which are for the next batch. So all events of one key in a batch are in
        one segment.

        Segments without events of a requested key are passed without a limit.

        Args:
            turn: see `advance.advance`.
        """
        key = self.options.key
        begins: dict[str, dict[int, Mark]] = {}
        first: dict[int, Mark] = {}
        last: dict[int, Mark] = {}
        for name in start:
            snapshot = snapshots[name]
            begins[name] = snapshot.pass_others(start[name], bound=bound[name], key=key)
            ends = snapshot.progress(bound[name])
            first |= begins[name]
            last |= {segment_id: max(mark, ends[segment_id]) for segment_id, mark in begins[name].items()}
        reached = await advance(
            self.client.segment_scan, first, last, max_events=max_events, max_bytes=max_bytes, turn=turn
        )
        return {
            name: snapshots[name].enter_successors({each: reached[each] for each in begin}, bound=bound[name])
            for name, begin in begins.items()
        }

    def is_idle(self, start: Places, end: Places, snapshots: Snapshots) -> bool:
        """Return whether nothing is to be read between two places, nor to be remembered."""
        if self.options.key is None:
            return start == end
        return start.keys() == end.keys() and all(
            _holding(start[name], snapshots[name], self.options.key)
            == _holding(end[name], snapshots[name], self.options.key)
            for name in end
        )

    # --- ranges ---

    async def partitions(
        self, start: Places, end: Places, snapshots: Snapshots, *, is_batch: bool
    ) -> list[RangePartition]:
        """Return the partitions that hold exactly the events between two cuts of each stream.

        Without an option that says otherwise each segment that is open at the end has a task of its own, or several of
        `PARTITION_SIZE_BYTES` in a batch. In a query that is so of each segment; in a batch the small ones of earlier
        epochs, of which there may be thousands, share tasks.

        Segments that were replaced come before their successors.
        """
        options = self.options
        streams: dict[int, str] = {}
        parts: list[SegmentRange] = []
        for name in start:
            ranges = self.of(name).ranges(start[name], end[name], snapshots[name])
            streams |= dict.fromkeys((part.segment_id for part in ranges), name)
            parts += ranges
        size_bytes = options.partition_bytes or (PARTITION_SIZE_BYTES if is_batch else None)
        apart = () if options.partition_bytes else [each for places in end.values() for each in places]
        total_bytes = sum(part.size_bytes for part in parts)
        share_bytes = max(1, -(-total_bytes // options.min_partitions))
        if options.min_partitions > 1 and (size_bytes is None or share_bytes < size_bytes):
            pieces = await self._divided(parts, share_bytes)
            # Each piece ends at the first place after its size, so there may be too few.
            while len(pieces) < options.min_partitions and share_bytes > INDEX_SPACING_BYTES:
                share_bytes //= 2
                pieces = await self._divided(parts, share_bytes)
        else:
            pieces = parts if size_bytes is None else await self._divided(parts, size_bytes)
        packed = pack(pieces, size_bytes=size_bytes, apart=apart)
        if len(packed) < options.min_partitions:
            packed = [[piece] for piece in pieces]
        return [RangePartition(ranges, streams) for ranges in packed]

    async def _divided(self, parts: Iterable[SegmentRange], size_bytes: int) -> list[SegmentRange]:
        found = await asyncio.gather(*(self.client.split_range(part, max_bytes=size_bytes) for part in parts))
        return [piece for pieces in found for piece in pieces]

    # --- lag ---

    async def lag(self, start: Places, end: Places, snapshots: Snapshots) -> dict[str, Any]:
        """Return how much is between two cuts of each stream, in events and bytes, and how old the oldest of it is."""
        names = [name for name in start if name in end]
        found = await asyncio.gather(*(self.of(name).lag(start[name], end[name], snapshots[name]) for name in names))
        return {
            "events": sum(lag.events for lag in found),
            "bytes": sum(lag.size_bytes for lag in found),
            "seconds": max((lag.seconds for lag in found), default=0.0),
        }


def run_plan(plan: Callable[[Planner], Awaitable[T]], *, link: Link, options: SourceOptions) -> T:
    """Return what a plan returns; run it again where a truncation came between its questions.

    The first plan over a link fails at once where no server answers. Those after it wait for a server that is away.

    Raises:
        OptionError: nothing answers to the first plan: names the address or the token.
        MillraceError: what the plan raised; what its last run raised where truncations do not end.
    """

    async def run(client: Client) -> T:
        planner = Planner(client, options)
        for _ in range(RUNS_COUNT_MAX - 1):
            # The next run knows of the truncation.
            with suppress(SegmentTruncatedError, SegmentNotFoundError):
                return await plan(planner)
        return await plan(planner)

    link.check()
    return link.turn(run(link.client()))


def _holding(marks: Mapping[int, Mark], snapshot: StreamSnapshot, key: str | None) -> dict[int, Mark]:
    """Return the marks in segments that may hold events of a key."""
    return {segment_id: mark for segment_id, mark in marks.items() if snapshot.holds(segment_id, key)}
