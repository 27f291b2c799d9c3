"""A task of a query: reads the ranges of its partition as Arrow batches.

The event loop turns only while Spark waits for a batch. Meanwhile the server has pushed into the socket what the window
allows, so that the network and Spark work at the same time without a thread between them.
"""

import gc
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from millrace.client.client import Client
from millrace.client.errors import SegmentTruncatedError
from millrace.client.read.ranges import KeptBlocks, SegmentRange
from millrace.model.position import Position

from .errors import DataLossError, MissingRange
from .link import borrowed
from .options import SourceOptions
from .positions import RangePartition
from .typed_rows import maker_of

logger = logging.getLogger(__name__)


def read_partition(options: SourceOptions, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the events of a partition in order; ending the iterator early ends the fetching.

    Raises:
        DataLossError: what comes next was truncated away, and `failOnDataLoss` is true.
        MalformedValueError: a value is not of the schema, and `mode` is FAILFAST.
        MillraceError: the server cannot be reached, or the bytes cannot be trusted.
    """
    # Spark reads one partition of its own making where a plan has none.
    ranges = partition.ranges if isinstance(partition, RangePartition) else ()
    if not ranges:
        return
    _freeze()
    assert isinstance(partition, RangePartition)
    with borrowed(options) as link:
        client = link.client()
        for part in ranges:
            stream = partition.streams[part.segment_id]
            maker = maker_of(options, stream, schema)
            batches = _read(client, options, stream, part, link.kept)
            try:
                while (batch := link.turn(_next(batches))) is not None:
                    yield from maker.convert(batch)
            finally:
                link.turn(_close(batches))


def _freeze() -> None:
    """Leave what the worker has imported out of garbage collections, once.

    PySpark runs a full collection after every task, over all objects of pyarrow and pandas: 30 ms of processor time
    for a task that reads 300,000 events in 60.
    """
    if not gc.get_freeze_count():
        gc.freeze()


async def _next(batches: AsyncIterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    return await anext(batches, None)


async def _close(batches: AsyncGenerator[pa.RecordBatch, None]) -> None:
    await batches.aclose()


async def _read(
    client: Client, options: SourceOptions, stream: str, part: SegmentRange, kept: KeptBlocks
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the batches of a range; where it is truncated meanwhile, fail or continue after the gap."""
    while True:
        try:
            async for batch in client.read_range(part, kept=kept):
                yield batch
                # What was read is not lost, whatever is truncated from now on.
                last = len(batch) - 1
                offset, index = batch.column("offset")[last].as_py(), batch.column("index")[last].as_py() + 1
                part = replace(part, start_offset=offset, start_index=index)
            return
        except SegmentTruncatedError as error:
            # Without an offset at which the segment begins now, the whole segment is deleted.
            head = part.end if error.start_offset is None else Position(error.start_offset, error.start_index)
            end = min(head, part.end)
            gap = MissingRange(
                segment_id=part.segment_id,
                start_offset=part.start_offset,
                start_index=part.start_index,
                end_offset=end.offset,
                end_index=end.event_index,
            )
            if options.fail_on_data_loss:
                raise DataLossError(stream, [gap]) from error
            logger.warning("events lost stream=%s at_most=%s", stream, gap)
            if head >= part.end:
                return
            part = replace(part, start_offset=head.offset, start_index=head.event_index)
