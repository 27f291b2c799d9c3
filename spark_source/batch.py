"""The batch reader: all events between two cuts, once."""

import logging
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from millrace.client.errors import StreamNotFoundError
from millrace.model.cut import StreamCut

from .link import Link
from .options import SourceOptions
from .planning import Bounds, Planner, run_plan
from .positions import RangePartition
from .reading import read_partition
from .snapshot import Marks, StreamSnapshot
from .stream_planning import StreamPlanner
from .typed_rows import check_columns

logger = logging.getLogger(__name__)


class MillraceBatchReader(DataSourceReader):
    """Reads the events between two cuts.

    Filters are left to Spark: Spark rejects a source that offers to evaluate some, unless
    `spark.sql.python.filterPushdown.enabled` is set, which it is not by default.

    Args:
        bounds: the cuts of each stream, if they are known; otherwise they are resolved from the options when the
            partitions are planned.
    """

    def __init__(self, options: SourceOptions, schema: StructType, bounds: dict[str, Bounds] | None) -> None:
        check_columns(schema, options)
        self._options = options
        self._schema = schema
        self._bounds = bounds

    def partitions(self) -> list[InputPartition]:
        """Return the partitions: see `Planner.partitions`.

        Raises:
            OptionError: the start is after the end.
            DataLossError: the start is before the truncation, and `failOnDataLoss` is true.
        """
        with closing(Link(self._options)) as link:
            return list(run_plan(self._plan, link=link, options=self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a partition; in a task."""
        return read_partition(self._options, self._schema, partition)

    async def _plan(self, planner: Planner) -> list[RangePartition]:
        if self._bounds is None:
            snapshots, bounds = await planner.bounds()
        else:
            bounds = self._bounds
            snapshots = await planner.fetch(
                {name: {*start.places, *end.places} for name, (start, end) in bounds.items()}
            )
            if gone := [name for name in bounds if name not in snapshots]:
                raise StreamNotFoundError(f"{', '.join(gone)}: deleted since the DataFrame was loaded")
        start, end = {}, {}
        for name, (first, last) in bounds.items():
            start[name], end[name] = await self._place(planner.of(name), first, last, snapshots[name])
        return await planner.partitions(start, end, snapshots, is_batch=True)

    async def _place(
        self, planner: StreamPlanner, first: StreamCut, last: StreamCut, snapshot: StreamSnapshot
    ) -> tuple[Marks, Marks]:
        """Return the cuts of one stream, checked, without truncated parts."""
        planner.check_order(first, last, snapshot)
        start, missing = await planner.place("startCut", first, snapshot)
        end, missing_end = await planner.place("endCut", last, snapshot)
        for gap in missing + missing_end:
            logger.warning("events lost stream=%s %s", planner.stream, gap)
        # Cuts that the server or we have made need no check of their places.
        if isinstance(self._options.start_of(planner.stream), StreamCut):
            await planner.counted("startCut", start, snapshot)
        if isinstance(self._options.end_of(planner.stream), StreamCut):
            await planner.counted("endCut", end, snapshot)
        return start, end
