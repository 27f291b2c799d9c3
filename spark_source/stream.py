"""The stream reader: micro-batches, each from the cut where the last one ended to one within the limits.

Spark calls it in one process on the driver, one method after the other. What must survive that process is in the
offsets; the rest (the connection, the target of `Trigger.AvailableNow`, whose turn it is) is made anew.

Spark gives `latestOffset` the start of the batch and a limit from 4.2 on. 4.0 and 4.1 call it with nothing: then a
batch starts where the last one ended, and the first batch of a run is not limited, for nobody says where it starts.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from millrace.client.client import Client
from millrace.client.cuts import TAIL
from millrace.client.seeking import Mark
from millrace.client.session import Session
from millrace.client.streams import StreamInfo

from .errors import CheckpointError, MissingRange
from .link import Link
from .options import SourceOptions, TimeCut
from .planning import Planner, tail_marks
from .positions import Marks, StreamOffset
from .reading import read_partition
from .rows import check_schema

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # PySpark 4.0 and 4.1: AvailableNow is then one batch up to the tail

        class SupportsTriggerAvailableNow:
            """Stands in for what this PySpark does not know."""


logger = logging.getLogger(__name__)


class MillraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream in micro-batches."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        """Keep what a task needs: no connection is pickled."""
        return {"_options": self._options, "_schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _forget(self) -> None:
        self._link = Link(self._options)
        # Batches planned in this process.
        self._turn = 0
        # Where `Trigger.AvailableNow` ends, if it was asked for.
        self._target: dict[int, Mark] | None = None
        # Where `endCut` is, once that cannot change.
        self._end: dict[int, Mark] | None = None
        # The end of the last batch planned; where the next one starts if Spark does not say.
        self._reached: StreamOffset | None = None
        # The tail when it was planned, or the end cut: behind it lies the lag.
        self._ahead: dict[int, Mark] = {}
        # Events found missing after the offset that ought to count them was given to Spark.
        self._lost_later = 0

    # --- what Spark calls on the driver ---

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts.

        Raises:
            OptionError: `startCut` does not fit the stream.
            DataLossError: it lies behind the truncation, and `failOnDataLoss` is true.
        """
        self._reached = self._link.call(self._initial)
        return self._reached.to_json()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any] | None = None, limit: "ReadLimit | None" = None
    ) -> dict[str, Any]:
        """Return where the next batch ends: `start` itself if there is nothing to read.

        Raises:
            CheckpointError: `start` is no offset of this stream.
            DataLossError: what comes next was truncated away, and `failOnDataLoss` is true.
        """
        offset = StreamOffset.from_json(start) if start is not None else self._reached
        max_events, max_bytes = self._limits(limit)
        if offset is None:
            self._reached = self._link.call(self._everything)
        else:
            known = offset
            self._reached = self._link.call(
                lambda client, session: self._latest(client, session, known, max_events=max_events, max_bytes=max_bytes)
            )
        return self._reached.to_json()

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
        self._target = self._link.call(self._find_target)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the tail and the lag behind it: what is not in a batch yet. Spark shows it as `latestOffset`."""
        reached = self._reached
        return None if reached is None else self._link.call(self._report)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of the batch between two offsets.

        Raises:
            DataLossError: some of it was truncated away, and `failOnDataLoss` is true.
        """
        first, last = StreamOffset.from_json(start), StreamOffset.from_json(end)
        if set(first.marks) != set(last.marks):
            raise CheckpointError(f"a batch from segments {sorted(first.marks)} to {sorted(last.marks)}")
        if self._reached is None:
            self._reached = last  # the batch that a restart runs again
        return self._link.call(lambda client, session: self._plan(client, session, first, last))

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

    async def _initial(self, client: Client, session: Session) -> StreamOffset:
        planner = Planner(client, session, self._options)
        info = await planner.info()
        cut, missing = await planner.place("startCut", self._options.start_cut, info)
        self._warn(missing)
        return StreamOffset(info.name, await planner.checked_marks("startCut", cut, info))

    async def _everything(self, client: Client, session: Session) -> StreamOffset:
        planner = Planner(client, session, self._options)
        info = await planner.info()
        return StreamOffset(info.name, await self._find_bound(planner, info))

    async def _latest(
        self, client: Client, session: Session, start: StreamOffset, *, max_events: int | None, max_bytes: int | None
    ) -> StreamOffset:
        planner = Planner(client, session, self._options)
        info = await planner.info()
        begin, missing = await planner.resume(start, info)
        self._warn(missing)
        if begin == tail_marks(info):
            self._bound = begin
        else:
            self._bound = await self._find_bound(planner, info)
        reached = await planner.advance(begin, self._bound, max_events=max_events, max_bytes=max_bytes, turn=self._turn)
        if reached == start.marks:
            return start
        self._turn += 1
        lost, self._lost_later = self._lost_later, 0
        return StreamOffset(info.name, reached, start.lost + lost + sum(gap.events or 0 for gap in missing))

    async def _plan(
        self, client: Client, session: Session, start: StreamOffset, end: StreamOffset
    ) -> list[InputPartition]:
        planner = Planner(client, session, self._options)
        begin, missing = await planner.resume(start, await planner.info())
        gone = sum(
            max(0, min(begin[gap.segment_id].events, end.marks[gap.segment_id].events))
            - start.marks[gap.segment_id].events
            for gap in missing
        )
        if gone > end.lost - start.lost:
            self._warn(missing)
            self._lost_later += gone - (end.lost - start.lost)
        return list(await planner.partitions(StreamOffset(start.stream, begin).cut, end.cut))

    async def _find_target(self, client: Client, session: Session) -> dict[int, Mark]:
        planner = Planner(client, session, self._options)
        return tail_marks(await planner.info())

    async def _find_bound(self, planner: Planner, info: StreamInfo) -> dict[int, Mark]:
        """Return the marks that no batch may pass now: the tail, the target of AvailableNow, the end cut."""
        self._ahead = _earlier(tail_marks(info), await self._find_end(planner, info))
        return _earlier(self._ahead, self._target)

    async def _find_end(self, planner: Planner, info: StreamInfo) -> dict[int, Mark] | None:
        """Return where `endCut` is, None without one."""
        choice = self._options.end_cut
        if choice is None or self._end is not None:
            return self._end
        if choice is TAIL:
            self._end = tail_marks(info)
            return self._end
        cut = await planner.clamped("endCut", choice, info)
        end = await planner.checked_marks("endCut", cut, info)
        # The end of a time is where an event of that time or later stands; where there is none yet, it may move.
        tail = tail_marks(info)
        if not isinstance(choice, TimeCut) or all(end[segment_id] < mark for segment_id, mark in tail.items()):
            self._end = end
        return end

    async def _report(self, client: Client, session: Session) -> dict[str, Any]:
        planner = Planner(client, session, self._options)
        assert self._reached is not None
        ahead: Marks = self._ahead or self._reached.marks
        lag = await planner.lag(self._reached.marks, ahead)
        content = StreamOffset(self._reached.stream, ahead, self._reached.lost).to_json()
        return {**content, "lag": {"events": lag.events, "bytes": lag.size_bytes, "seconds": round(lag.age_s, 3)}}

    def _warn(self, missing: Sequence[MissingRange]) -> None:
        for gap in missing:
            logger.warning("events lost stream=%s %s", self._options.stream, gap)


def _earlier(marks: dict[int, Mark], others: Marks | None) -> dict[int, Mark]:
    """Return the earlier of two marks in each segment."""
    if others is None:
        return marks
    return {segment_id: min(mark, others[segment_id]) for segment_id, mark in marks.items()}
