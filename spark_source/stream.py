"""The stream reader: micro-batches, each from the cut where the last one ended to one within the limits.

Spark calls it in one process on the driver, one method after the other. What must survive that process is in the
offsets; the rest (the connection, the target of `Trigger.AvailableNow`, whose turn it is) is made again.

Spark gives `latestOffset` the start of the batch and a limit from 4.2 on. 4.0 and 4.1 call it with nothing: then a
batch starts where the last one ended, and the first batch of a run is not limited, for its start is not known.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from millrace.model.cut import TAIL, TimeCut
from millrace.model.position import START_MARK, Mark

from .errors import CheckpointError, MissingRange
from .link import Link
from .options import SourceOptions
from .planning import Planner, Snapshots, run_plan
from .positions import Places, StreamOffset
from .query_cursor import QueryCursor, made_name
from .reading import read_partition
from .snapshot import Marks, StreamSnapshot, cut_of
from .stream_planning import check_fits
from .typed_rows import check_columns

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # PySpark 4.0 and 4.1: AvailableNow is then one batch up to the tail

        class SupportsTriggerAvailableNow:
            """Replaces a class that this PySpark does not have."""


logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True)
class QueryState:
    """What a query knows in this process, from one call of Spark to the next. A restart begins with nothing of it.

    Attributes:
        batch_count: batches planned.
        planned_end: the end of the last batch planned; the next one starts there if Spark does not say where.
        begun: the start of a batch as Spark said it, and what is known to be read by then: not less.
        cursor: the name of the query on the server, if it made it itself and no offset that Spark has given holds it.
        available_end: where `Trigger.AvailableNow` ends, if it was asked for.
        option_end: where `endCut` is, in the streams in which that cannot change.
        lag_end: the streams when `planned_end` was planned, and their tails or the end cut: up to there is the lag.
        lost_uncounted: events found missing after the offset that ought to count them was given to Spark.
        logged_gaps: missing ranges that are in the log already.
        left: streams of the checkpoint that are not read any more, which is in the log.
        restarted: streams that were deleted and created again, which is in the log.
    """

    batch_count: int = 0
    planned_end: StreamOffset | None = None
    begun: tuple[StreamOffset, Places] | None = None
    cursor: str = ""
    available_end: Places | None = None
    option_end: dict[str, Marks] = field(default_factory=dict)
    lag_end: tuple[Snapshots, Places] | None = None
    lost_uncounted: int = 0
    logged_gaps: set[MissingRange] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    restarted: set[str] = field(default_factory=set)


class MillraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams in micro-batches."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options
        self._schema = schema
        self._link = Link(options, request_timeout_s=options.outage_timeout_s)
        self._state = QueryState()
        self._cursor = QueryCursor(hold_s=options.cursor_hold_s)

    def __reduce__(self) -> tuple[type[Self], tuple[SourceOptions, StructType]]:
        """Keep what a task needs: no connection is pickled."""
        return type(self), (self._options, self._schema)

    # --- what Spark calls on the driver ---

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts.

        Raises:
            OptionError: there is no such stream, `startCut` does not fit it, or is after `endCut`.
            DataLossError: it is before the truncation, and `failOnDataLoss` is true.
        """
        initial = self._run(self._initial)
        # PySpark 4.0 and 4.1 ask for the end of the first batch before its start: the next one continues at that end.
        if self._state.planned_end is None:
            self._state.planned_end = initial
        return initial.to_json()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: "ReadLimit | None" = None
    ) -> dict[str, Any]:
        """Return where the next batch ends: `start` itself if there is nothing to read.

        A batch does not continue from segments that were replaced to their successors: it ends before those. If
        there was nothing left to read of the former, it is a batch without events, which only moves to the successors.

        Raises:
            StreamNotFoundError: the stream was deleted.
            CheckpointError: `start` is no offset of this stream.
            DataLossError: what comes next was truncated away, and `failOnDataLoss` is true.
        """
        offset = StreamOffset.from_json(start) if start is not None else self._state.planned_end
        if offset is None:
            return self._remember(self._everything)
        max_events, max_bytes = self._limits(limit)
        is_told = start is not None
        return self._remember(
            lambda planner: self._latest(planner, offset, max_events=max_events, max_bytes=max_bytes, is_told=is_told)
        )

    def getDefaultReadLimit(self) -> "ReadLimit":  # noqa: N802 - Spark's name
        """Return the limit of the options; of two of them Spark is told one, and both are kept."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

        if self._options.max_events is not None:
            return ReadMaxRows(self._options.max_events)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Let the query end at the tail as it is now."""
        self._state.available_end = self._run(self._find_target)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the tail and the lag: what is not in a batch yet. Spark shows it as `latestOffset`."""
        planned_end = self._state.planned_end
        return None if planned_end is None else self._run(self._report)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of the batch between two offsets, wherever the stream was scaled between them.

        Raises:
            DataLossError: some of it was truncated away, and `failOnDataLoss` is true.
        """
        first, last = StreamOffset.from_json(start), StreamOffset.from_json(end)
        # A restart runs its last batch again if that was not committed. 4.0 asks for the empty batch after it, too,
        # before it asks for an end: that must be the tail, for an AvailableNow is a single batch there.
        if self._state.planned_end is None and first != last:
            self._state.planned_end = last
        if not last.cursor:  # PySpark 4.0 and 4.1 had said nothing of the start when it was planned
            self._state.cursor = first.cursor
        return self._run(lambda planner: self._plan(planner, first, last))

    def commit(self, end: dict[str, Any]) -> None:
        """Move the cursor of the query on the server. How far the query has come is in its checkpoint."""
        offset = StreamOffset.from_json(end)
        begun = self._state.begun
        places = begun[1] if begun is not None and begun[0] == offset else offset.places
        self._run(lambda planner: self._move_cursor(planner, offset, places))

    def stop(self) -> None:
        """Close the connection."""
        self._link.close()

    # --- what Spark calls in a task ---

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a partition."""
        return read_partition(self._options, self._schema, partition)

    # --- inside ---

    def _run(self, plan: Callable[[Planner], Awaitable[T]]) -> T:
        return run_plan(plan, link=self._link, options=self._options)

    def _limits(self, limit: "ReadLimit | None") -> tuple[int | None, int | None]:
        """Return the most events and bytes of a batch."""
        # By name: PySpark 4.0 and 4.1 have no such classes.
        if limit is not None and type(limit).__name__ == "ReadAllAvailable":
            return None, None
        rows = (self._options.max_events, getattr(limit, "max_rows", None))
        sizes = (self._options.max_bytes, getattr(limit, "max_bytes", None))
        return (
            min((most for most in rows if most is not None), default=None),
            min((most for most in sizes if most is not None), default=None),
        )

    def _remember(self, plan: Callable[[Planner], Awaitable[StreamOffset]]) -> dict[str, Any]:
        """Plan how far the query goes, and remember it."""
        self._state.planned_end = planned_end = self._run(plan)
        return planned_end.to_json()

    async def _initial(self, planner: Planner) -> StreamOffset:
        snapshots = await planner.fetch_first()
        places = {}
        for name, snapshot in snapshots.items():
            of_stream = planner.of(name)
            choice, end_choice = self._options.start_of(name), self._options.end_of(name)
            if end_choice is not None:
                start = await of_stream.named("startCut", choice, snapshot)
                of_stream.check_order(start, await of_stream.named("endCut", end_choice, snapshot), snapshot)
            cut, missing = await of_stream.place("startCut", choice, snapshot)
            self._warn(name, missing)
            places[name] = await of_stream.counted("startCut", cut, snapshot)
        return StreamOffset(places, cursor=self._cursor_name())

    async def _everything(self, planner: Planner) -> StreamOffset:
        snapshots = await self._fetch(planner)
        # The name that it has made itself is in an offset that Spark does not show.
        return StreamOffset(await self._find_bounds(planner, snapshots), cursor=self._options.cursor or "")

    async def _latest(
        self, planner: Planner, start: StreamOffset, *, max_events: int | None, max_bytes: int | None, is_told: bool
    ) -> StreamOffset:
        state = self._state
        snapshots = await self._fetch(planner, start.places)
        self._check_streams(planner, start, snapshots)
        begins, missing = await planner.resume(start.places, snapshots)
        for name, gaps in missing.items():
            self._warn(name, gaps)
        bounds = await self._find_bounds(planner, {name: snapshots[name] for name in begins})
        planned_end = await planner.advance(
            begins, bounds, snapshots, max_events=max_events, max_bytes=max_bytes, turn=state.batch_count
        )
        # Streams that match a pattern join at their heads: the next batch reads them.
        for name in sorted(snapshots.keys() - start.places.keys()):
            if self._options.end_cut is None and (state.available_end is None or name in state.available_end):
                planned_end[name] = await planner.of(name).counted(
                    "streamPattern", snapshots[name].head, snapshots[name]
                )
        is_idle = planner.is_idle(start.places, planned_end, snapshots)
        if is_told:
            key = self._options.key
            passed = {name: snapshots[name].pass_others(begins[name], bound=bounds[name], key=key) for name in begins}
            state.begun = start, passed
            # Spark commits a batch when it has planned the next one: of the last one it tells nothing but this.
            if is_idle or not self._cursor.is_set:
                await self._move_cursor(planner, start, passed)
        if is_idle:
            return start
        lost = start.lost + state.lost_uncounted + sum(gap.events or 0 for gaps in missing.values() for gap in gaps)
        state.batch_count += 1
        state.lost_uncounted = 0
        return StreamOffset(planned_end, lost, self._cursor_name(start))

    async def _plan(self, planner: Planner, start: StreamOffset, end: StreamOffset) -> list[InputPartition]:
        snapshots = await self._fetch(planner, start.places, end.places)
        self._check_streams(planner, end, snapshots)
        joins = self._options.end_cut is None
        names = [name for name in end.places if name in snapshots and (joins or name in start.places)]
        begun = {name: start.places[name] for name in names if name in start.places}
        ends = dict(end.places)
        for name in names:
            if planner.of(name).restarts(ends[name], snapshots[name]):
                ends[name] = snapshots[name].head  # what the batch was to read is gone
            check_fits(ends[name], snapshots[name])
            # A stream that is new to the query begins at its head. It ends there, too, where the start of the batch
            # was known; PySpark 4.0 and 4.1 do not tell it after a restart, and the end may be the tail.
            if name not in begun:
                begun[name] = await planner.of(name).counted("streamPattern", snapshots[name].head, snapshots[name])
        begins, missing = await planner.resume(begun, snapshots)
        lost = 0
        for name, gaps in missing.items():
            reached = snapshots[name].progress(ends[name])
            for gap in gaps:
                if gap.events is not None:
                    first = begun[name].get(gap.segment_id, START_MARK).events
                    lost += max(0, min(first + gap.events, reached[gap.segment_id].events) - first)
        last = {name: snapshots[name].maximum(ends[name], begins[name]) for name in names}
        partitions = await planner.partitions(begins, last, snapshots, is_batch=False)
        counted = end.lost - start.lost
        for name, gaps in missing.items():
            self._warn(name, [gap for gap in gaps if gap.events is None or lost > counted])
        self._state.lost_uncounted += max(0, lost - counted)
        return list(partitions)

    async def _find_target(self, planner: Planner) -> Places:
        return {name: snapshot.tail for name, snapshot in (await planner.fetch()).items()}

    async def _fetch(self, planner: Planner, *cuts: Places) -> dict[str, StreamSnapshot]:
        """Return the streams with all segments that are named by what a batch may have to do with."""
        state = self._state
        end_cut = self._options.end_cut
        ends = {cut.stream: cut.places for cut in end_cut} if isinstance(end_cut, tuple) else {}
        return await planner.fetch(*cuts, state.available_end or {}, state.option_end, ends)

    def _check_streams(self, planner: Planner, offset: StreamOffset, snapshots: Snapshots) -> None:
        """Check that what a checkpoint names is read, or gone; say what is not read any more.

        Raises:
            CheckpointError: it names streams of which the options mean none.
        """
        selection = self._options.selection
        others = [name for name in offset.places if name not in selection.names and not selection.matches(name)]
        if others and len(others) == len(offset.places):
            raise CheckpointError(
                f"the checkpoint does not fit: it is one of {', '.join(others)}, and what is read is "
                f"{', '.join((*selection.names, *selection.patterns))}"
            )
        for name in offset.places.keys() & snapshots.keys() - self._state.restarted:
            if planner.of(name).restarts(offset.places[name], snapshots[name]):
                self._state.restarted.add(name)
                logger.warning("stream was recreated, reading from its head stream=%s", name)
        for name in offset.places.keys() - snapshots.keys() - self._state.left:
            self._state.left.add(name)
            logger.warning(
                "stream left the query stream=%s reason=%s", name, "options" if name in others else "deleted"
            )

    async def _find_bounds(self, planner: Planner, snapshots: Snapshots) -> dict[str, dict[int, Mark]]:
        """Return the cuts that no batch may pass now: of each stream the minimum of tail, target, end cut.

        The target is that of AvailableNow; a stream that it does not know is not read in this run.
        """
        lag_ends: dict[str, Marks] = {}
        bounds: dict[str, dict[int, Mark]] = {}
        available_end = self._state.available_end
        for name, snapshot in snapshots.items():
            end = await self._find_end(planner, name, snapshot)
            lag_ends[name] = snapshot.tail if end is None else snapshot.minimum(snapshot.tail, end)
            target = lag_ends[name] if available_end is None else available_end.get(name, snapshot.head)
            if snapshot.is_newer_than(target):
                target = snapshot.head  # for the next run, like streams that are new to the query
            bounds[name] = snapshot.minimum(lag_ends[name], target)
        self._state.lag_end = snapshots, lag_ends
        return bounds

    async def _find_end(self, planner: Planner, name: str, snapshot: StreamSnapshot) -> Marks | None:
        """Return where `endCut` is in a stream, None without one."""
        choice = self._options.end_of(name)
        known = self._state.option_end.get(name)
        if known is not None and snapshot.is_newer_than(known):
            del self._state.option_end[name]
            known = None
        if choice is None or known is not None:
            return known
        if choice is TAIL:
            self._state.option_end[name] = snapshot.tail
            return snapshot.tail
        cut = await planner.of(name).named("endCut", choice, snapshot)
        end = await planner.of(name).counted("endCut", snapshot.clamped(cut), snapshot)
        # The end of a time is after the last event that is older; where that is the last of its segment, it may move.
        if not isinstance(choice, TimeCut) or all(
            snapshot.is_replaced(segment_id) or mark < snapshot.end(segment_id) for segment_id, mark in end.items()
        ):
            self._state.option_end[name] = end
        return end

    def _cursor_name(self, offset: StreamOffset | None = None) -> str:
        """Return the name of the query on the server: that of the options, of an offset, or one that is made now."""
        if self._options.cursor is not None:
            return self._options.cursor
        if offset is not None and offset.cursor:
            return offset.cursor
        self._state.cursor = self._state.cursor or made_name()
        return self._state.cursor

    async def _move_cursor(self, planner: Planner, offset: StreamOffset, places: Places) -> None:
        await self._cursor.move(
            planner.client, self._cursor_name(offset), {name: cut_of(name, marks) for name, marks in places.items()}
        )

    async def _report(self, planner: Planner) -> dict[str, Any]:
        planned_end = self._state.planned_end
        assert planned_end is not None
        if self._state.lag_end is None:
            return {**planned_end.to_json(), "lag": {"events": 0, "bytes": 0, "seconds": 0.0}}
        snapshots, lag_ends = self._state.lag_end
        content = replace(planned_end, places=lag_ends).to_json()
        return {**content, "lag": await planner.lag(planned_end.places, lag_ends, snapshots)}

    def _warn(self, stream: str, missing: Iterable[MissingRange]) -> None:
        """Name gaps in the log, each once."""
        for gap in missing:
            if gap not in self._state.logged_gaps:
                self._state.logged_gaps.add(gap)
                logger.warning("events lost stream=%s %s", stream, gap)
