"""Catch-up reads of tier 2 whose files are in the page cache: one reader, and eight at the same time."""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from .child import measured
from .dataset import fill_segment
from .floors import MIB
from .reader import ReaderOptions, ReaderResult
from .report import Bound, Quantity, Row, SyncRate, Target, Unit
from .rounds import interleaved, median_by, spread
from .server import MillraceServer, millrace_server
from .session import Session

_READERS: Final = 8
_SEGMENT_SIZE_BYTES: Final = 96 * MIB
_ONE_READER_BYTES_PER_S: Final = 1.5e9
_NO_SYNCS: Final = SyncRate(0.0, "none made")


def measure(session: Session) -> Iterator[Row]:
    """Yield the rate of one reader, who reads eight segments in turn, and that of eight who read one each."""
    size = max(8, session.count(_SEGMENT_SIZE_BYTES // MIB)) * MIB
    with tempfile.TemporaryDirectory(dir=session.directory) as name:
        folder = Path(name) / "data"
        with millrace_server(session.directory, folder=folder) as server:
            segments = [(fill_segment(server, f"raw/history-{index}", size), size) for index in range(_READERS)]
        # A server that stops flushes: of the next one nothing is in memory and everything in tier 2.
        with millrace_server(session.directory, folder=folder) as server:
            read = partial(_read, server, segments)
            # Once before, for the page cache.
            read(1)
            work: dict[int, Callable[[], ReaderResult]] = {1: partial(read, 1), _READERS: partial(read, _READERS)}
            results = interleaved(work)
            cache_bytes = server.statistics()["cache"].get("size_bytes", 0.0)
    one, many = (median_by(results[count], _bytes_per_s) for count in (1, _READERS))
    one_figure = Quantity(one.bytes_per_s, Unit.BYTES_PER_SECOND)
    about = f"{_READERS} segments of {Quantity(size, Unit.BYTES)}; the server's own cache holds {{}} of them"
    about = about.format(Quantity(cache_bytes, Unit.BYTES))
    yield Row(
        name="catch-up read of tier 2 in the page cache, 1 reader",
        figure=one_figure,
        reference_name="the design",
        reference=Quantity(_ONE_READER_BYTES_PER_S, Unit.BYTES_PER_SECOND),
        target=Target(Bound.AT_LEAST, 1.0),
        syncs=_NO_SYNCS,
        conditions=f"{about}; {_generator(one)}; {spread(results[1], _bytes_per_s)}",
    )
    yield Row(
        name=f"catch-up read of tier 2 in the page cache, {_READERS} readers together",
        figure=Quantity(many.bytes_per_s, Unit.BYTES_PER_SECOND),
        reference_name="1 reader",
        reference=one_figure,
        target=Target(Bound.AT_LEAST, 1.0),
        syncs=_NO_SYNCS,
        conditions=f"{_generator(many)}; {spread(results[_READERS], _bytes_per_s)}",
    )


def _read(server: MillraceServer, segments: list[tuple[int, int]], at_once: int) -> ReaderResult:
    return measured("reader", ReaderOptions(address=server.address, segments=segments, at_once=at_once), ReaderResult)


def _bytes_per_s(result: ReaderResult) -> float:
    return result.bytes_per_s


def _generator(result: ReaderResult) -> str:
    return f"processors: generator {result.cpu_s / result.elapsed_s:.2f}"
