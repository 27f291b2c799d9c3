"""A part of a stream as a table in memory: of polars, or of pandas."""

import asyncio
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from millrace.client.admin.readers import Choices, StreamList
from millrace.client.read.event_reader import EventReader
from millrace.client.read.reader import ReaderOptions
from millrace.model.cut import TAIL
from millrace.model.errors import InvalidArgumentError
from millrace.model.extras import needs
from millrace.model.slice import Slice

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa


class ReadTable(TypedDict, total=False):
    """What is read, and as which columns: see `DataFrames.to_polars`."""

    start: Choices
    end: Choices
    key: str | None
    json: "bool | pa.Schema"
    infer_count: int
    options: ReaderOptions | None


class DataFrames(ABC):
    """What a client makes of events for those who compute with tables."""

    @abstractmethod
    def reader(self, *args: Any, **kwargs: Any) -> AbstractAsyncContextManager[EventReader]:
        """Return a reader, of a stream or several."""

    async def to_polars(self, stream: str | Slice | StreamList, **arguments: Unpack[ReadTable]) -> "pl.DataFrame":
        """Return the events between two places as a polars DataFrame; needs the extra `polars`.

        All of them are in memory in the end. For more than that, give `reader.to_arrow` to what reads in batches.

        Args:
            stream, start, end, key, options: as of `reader`, but that the end is the tail at this moment unless given.
            json, infer_count: as of `reader.to_arrow`: values that are JSON become columns.

        Raises:
            MissingExtraError: polars or pyarrow is not installed.
            InvalidArgumentError: a slice without an end, or whatever `reader` refuses.
            ValueMalformedError: a value does not fit its columns.
        """
        with needs("polars"):
            import polars as pl
        frame = pl.from_arrow(await _table(self, stream, arguments))
        assert isinstance(frame, pl.DataFrame), "a table is one, only an array is a Series"
        return frame

    async def to_pandas(self, stream: str | Slice | StreamList, **arguments: Unpack[ReadTable]) -> "pd.DataFrame":
        """Return the events between two places as a pandas DataFrame; needs the extra `pandas`.

        Columns keep their Arrow types (`pandas.ArrowDtype`), so an integer that may be null stays an integer. Arguments
        and errors are those of `to_polars`.
        """
        with needs("pandas"):
            import pandas as pd
        table = await _table(self, stream, arguments)
        frame: pd.DataFrame = table.to_pandas(types_mapper=pd.ArrowDtype)
        return frame


async def _table(client: DataFrames, stream: str | Slice | StreamList, arguments: ReadTable) -> "pa.Table":
    """Return the events as one table, of batches as they were read."""
    chosen: dict[str, Any] = {**arguments}
    columns = {name: chosen.pop(name) for name in ("json", "infer_count") if name in chosen}
    if isinstance(stream, Slice):
        if stream.end is None:
            raise InvalidArgumentError(f"{stream} has no end: a table would never be whole")
    else:
        chosen.setdefault("end", TAIL)
        if chosen["end"] is None:
            raise InvalidArgumentError("without an end a table would never be whole")
    async with client.reader(stream, **chosen) as reader:
        return await asyncio.to_thread((await reader.to_arrow(**columns)).read_all)
