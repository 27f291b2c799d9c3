"""The stream reader: micro-batches, each from the cut where the last one ended to one within the limits.

Spark calls it in one process on the driver, one method after the other. What must survive that process is in the
offsets; the rest (the connection, the target of `Trigger.AvailableNow`, whose turn it is) is made again.

Spark gives `latestOffset` the start of the batch and a limit from 4.2 on. 4.0 and 4.1 call it with nothing: then a
batch starts where the last one ended, and the first batch of a run is not limited, for its start is not known.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from millrace.model.cut import TAIL, TimeCut
from millrace.model.position import START_MARK

from .errors import MissingRange
from .link import Link
from .options import SourceOptions, segments_of
from .planning import Planner, check_fits
from .positions import StreamOffset
from .reading import read_partition
from .snapshot import Marks, StreamSnapshot
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


@dataclass(slots=True)
class QueryState:
    """What a query knows in this process, from one call of Spark to the next. A restart begins with nothing of it.

    Attributes:
        batch_count: batches planned.
        planned_end: the end of the last batch planned; the next one starts there if Spark does not say where.
        available_end: where `Trigger.AvailableNow` ends, if it was asked for.
        option_end: where `endCut` is, once that cannot change.
        lag_end: the stream when `planned_end` was planned, and its tail or the end cut: up to there is the lag.
        lost_uncounted: events found missing after the offset that ought to count them was given to Spark.
        logged_gaps: missing ranges that are in the log already.
    """

    batch_count: int = 0
    planned_end: StreamOffset | None = None
    available_end: Marks | None = None
    option_end: Marks | None = None
    lag_end: tuple[StreamSnapshot, Marks] | None = None
    lost_uncounted: int = 0
    logged_gaps: set[MissingRange] = field(default_factory=set)


class MillraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream in micro-batches."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options
        self._schema = schema
        self._link = Link(options, is_running=True)
        self._state = QueryState()

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
        return self._remember(self._initial)

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
        return self._remember(lambda planner: self._latest(planner, offset, max_events=max_events, max_bytes=max_bytes))

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
        self._state.available_end = self._link.call(self._find_target)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the tail and the lag: what is not in a batch yet. Spark shows it as `latestOffset`."""
        planned_end = self._state.planned_end
        return None if planned_end is None else self._link.call(self._report)

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
        return self._link.call(lambda planner: self._plan(planner, first, last))

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: how far the query has come is in its checkpoint."""

    def stop(self) -> None:
        """Close the connection."""
        self._link.close()

    # --- what Spark calls in a task ---

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a partition."""
        return read_partition(self._options, self._schema, partition)

    # --- inside ---

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
        self._state.planned_end = planned_end = self._link.call(plan)
        return planned_end.to_json()

    async def _initial(self, planner: Planner) -> StreamOffset:
        start_cut, end_cut = self._options.start_cut, self._options.end_cut
        snapshot = await planner.fetch_named(segments_of(start_cut), segments_of(end_cut))
        if end_cut is not None:
            start = await planner.named("startCut", start_cut, snapshot)
            planner.check_order(start, await planner.named("endCut", end_cut, snapshot), snapshot)
        cut, missing = await planner.place("startCut", start_cut, snapshot)
        self._warn(missing)
        return StreamOffset(snapshot.stream.name, await planner.counted("startCut", cut, snapshot))

    async def _everything(self, planner: Planner) -> StreamOffset:
        snapshot = await self._fetch(planner)
        return StreamOffset(snapshot.stream.name, await self._find_bound(planner, snapshot))

    async def _latest(
        self, planner: Planner, start: StreamOffset, *, max_events: int | None, max_bytes: int | None
    ) -> StreamOffset:
        snapshot = await self._fetch(planner, start.marks)
        begin, missing = await planner.resume(start, snapshot)
        self._warn(missing)
        bound = await self._find_bound(planner, snapshot)
        planned_end = await planner.advance(
            begin, bound, snapshot, max_events=max_events, max_bytes=max_bytes, turn=self._state.batch_count
        )
        if planned_end == start.marks:
            return start
        lost = start.lost + self._state.lost_uncounted + sum(gap.events or 0 for gap in missing)
        self._state.batch_count += 1
        self._state.lost_uncounted = 0
        return StreamOffset(snapshot.stream.name, planned_end, lost)

    async def _plan(self, planner: Planner, start: StreamOffset, end: StreamOffset) -> list[InputPartition]:
        snapshot = await planner.fetch(start.marks, end.marks)
        check_fits(end, snapshot)
        begin, missing = await planner.resume(start, snapshot)
        ends = snapshot.progress(end.marks)
        lost = 0
        for gap in missing:
            if gap.events is not None:
                first = start.marks.get(gap.segment_id, START_MARK).events
                lost += max(0, min(first + gap.events, ends[gap.segment_id].events) - first)
        partitions = await planner.partitions(begin, snapshot.maximum(end.marks, begin), snapshot)
        counted = end.lost - start.lost
        self._warn([gap for gap in missing if gap.events is None or lost > counted])
        self._state.lost_uncounted += max(0, lost - counted)
        return list(partitions)

    async def _find_target(self, planner: Planner) -> Marks:
        return (await planner.fetch()).tail

    async def _fetch(self, planner: Planner, *cuts: Iterable[int]) -> StreamSnapshot:
        """Return the stream with all segments that are named by what a batch may have to do with."""
        state = self._state
        return await planner.fetch(
            *cuts, state.available_end or (), state.option_end or (), segments_of(self._options.end_cut)
        )

    async def _find_bound(self, planner: Planner, snapshot: StreamSnapshot) -> Marks:
        """Return the cut that no batch may pass now: the minimum of tail, target of AvailableNow, end cut."""
        end = await self._find_end(planner, snapshot)
        lag_end = snapshot.tail if end is None else snapshot.minimum(snapshot.tail, end)
        self._state.lag_end = snapshot, lag_end
        available_end = self._state.available_end
        return lag_end if available_end is None else snapshot.minimum(lag_end, available_end)

    async def _find_end(self, planner: Planner, snapshot: StreamSnapshot) -> Marks | None:
        """Return where `endCut` is, None without one."""
        choice = self._options.end_cut
        if choice is None or self._state.option_end is not None:
            return self._state.option_end
        if choice is TAIL:
            self._state.option_end = snapshot.tail
            return snapshot.tail
        cut = await planner.named("endCut", choice, snapshot)
        end = await planner.counted("endCut", snapshot.clamped(cut), snapshot)
        # The end of a time is after the last event that is older; where that is the last of its segment, it may move.
        if not isinstance(choice, TimeCut) or all(
            snapshot.is_replaced(segment_id) or mark < snapshot.end(segment_id) for segment_id, mark in end.items()
        ):
            self._state.option_end = end
        return end

    async def _report(self, planner: Planner) -> dict[str, Any]:
        planned_end = self._state.planned_end
        assert planned_end is not None
        if self._state.lag_end is None:
            return {**planned_end.to_json(), "lag": {"events": 0, "bytes": 0, "seconds": 0.0}}
        snapshot, lag_end = self._state.lag_end
        content = StreamOffset(planned_end.stream, lag_end, planned_end.lost).to_json()
        return {**content, "lag": await planner.lag(planned_end.marks, lag_end, snapshot)}

    def _warn(self, missing: Iterable[MissingRange]) -> None:
        """Name gaps in the log, each once."""
        for gap in missing:
            if gap not in self._state.logged_gaps:
                self._state.logged_gaps.add(gap)
                logger.warning("events lost stream=%s %s", self._options.stream, gap)
