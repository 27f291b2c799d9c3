"""The batch reader: everything between two cuts, once."""

import logging
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from millrace.model.cut import TAIL, StreamCut

from .link import Link
from .options import SourceOptions, segments_of
from .planning import Planner
from .positions import RangePartition
from .reading import read_partition
from .snapshot import StreamSnapshot
from .typed_rows import check_columns

logger = logging.getLogger(__name__)

Bounds = tuple[StreamCut, StreamCut]


class MillraceBatchReader(DataSourceReader):
    """Reads the events between two cuts.

    Filters are left to Spark: a source that offers to take some is refused by Spark unless
    `spark.sql.python.filterPushdown.enabled` is set, which it is not by default.

    Args:
        bounds: the cuts, where they are known; else they are what the options say when the partitions are planned.
    """

    def __init__(self, options: SourceOptions, schema: StructType, bounds: Bounds | None) -> None:
        check_columns(schema, options)
        self._options = options
        self._schema = schema
        self._bounds = bounds

    def partitions(self) -> list[InputPartition]:
        """Return the partitions, each of about `partitionBytes`.

        Raises:
            OptionError: the start is after the end.
            DataLossError: the start is before the truncation, and `failOnDataLoss` is true.
        """
        with closing(Link(self._options)) as link:
            return list(link.call(self._plan))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a partition; in a task."""
        return read_partition(self._options, self._schema, partition)

    async def _plan(self, planner: Planner) -> list[RangePartition]:
        if self._bounds is None:
            snapshot, bounds = await find_bounds(planner)
        else:
            bounds = self._bounds
            snapshot = await planner.fetch(*(cut.places for cut in bounds))
        planner.check_order(*bounds, snapshot)
        start, missing = await planner.place("startCut", bounds[0], snapshot)
        end, missing_end = await planner.place("endCut", bounds[1], snapshot)
        for gap in missing + missing_end:
            logger.warning("events lost stream=%s %s", snapshot.stream.name, gap)
        # Cuts that the server or we have made need no check of their places.
        if isinstance(self._options.start_cut, StreamCut):
            await planner.counted("startCut", start, snapshot)
        if isinstance(self._options.end_cut, StreamCut):
            await planner.counted("endCut", end, snapshot)
        return await planner.partitions(start, end, snapshot)


async def find_bounds(planner: Planner) -> tuple[StreamSnapshot, Bounds]:
    """Return the stream and the cuts that the options name now, wherever the head is.

    Raises:
        OptionError: there is no such stream, a cut does not fit it, or the start is after the end.
    """
    options = planner.options
    end_cut = TAIL if options.end_cut is None else options.end_cut
    snapshot = await planner.fetch_named(segments_of(options.start_cut), segments_of(end_cut))
    start = await planner.named("startCut", options.start_cut, snapshot)
    end = await planner.named("endCut", end_cut, snapshot)
    # The tail moves: a query that began at it, and is resumed from its checkpoint, may have passed its end by now.
    if options.start_cut is not TAIL:
        planner.check_order(start, end, snapshot)
    return snapshot, (start, end)
