"""Catch-up reads from a store that answers after 5 and 30 ms, beside a folder in the page cache."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from .child import measured
from .floors import MIB
from .report import Quantity, Row, SyncRate, Unit
from .rounds import interleaved, median_by, spread
from .session import Session
from .store_reader import CHUNK_SIZE_BYTES, StoreReaderOptions, StoreReaderResult, fill

_READERS: Final = 4
_SEGMENT_SIZE_BYTES: Final = 96 * MIB
_NO_SYNCS: Final = SyncRate(0.0, "none made")
_Case = tuple[float, bool, int]
"""The delay in seconds, whether with the settings for a store, and how many readers."""
_CASES: Final[tuple[_Case, ...]] = (
    (0.0, False, 1),
    *((latency_s, is_tuned, 1) for latency_s in (0.005, 0.03) for is_tuned in (False, True)),
    *((latency_s, True, _READERS) for latency_s in (0.005, 0.03)),
)


def measure(session: Session) -> Iterator[Row]:
    """Yield the rate of a reader of a folder, then of readers of a store, with the settings of either."""
    size = max(1, session.count(_SEGMENT_SIZE_BYTES // CHUNK_SIZE_BYTES)) * CHUNK_SIZE_BYTES
    with tempfile.TemporaryDirectory(dir=session.directory) as folder:
        asyncio.run(fill(Path(folder), segments=_READERS, size=size))
        work: dict[_Case, Callable[[], StoreReaderResult]] = {case: partial(_read, folder, case) for case in _CASES}
        work[_CASES[0]]()  # once before, for the page cache
        results = interleaved(work)
    reference: Quantity | None = None
    for case, rounds in results.items():
        latency_s, is_tuned, readers = case
        result = median_by(rounds, _bytes_per_s)
        figure = Quantity(result.bytes_per_s, Unit.BYTES_PER_SECOND)
        where = f"a store of {Quantity(latency_s, Unit.SECONDS)} a GET" if latency_s else "a folder"
        settings = "with its settings" if is_tuned or not latency_s else "with the settings of a folder"
        yield Row(
            name=f"catch-up read of {where}, {settings}, {readers} reader{'s' * (readers > 1)}",
            figure=figure,
            reference_name="" if reference is None else "a folder",
            reference=reference,
            syncs=_NO_SYNCS,
            conditions=(
                f"{_READERS} segments of {Quantity(size, Unit.BYTES)} in chunks of 8 MiB; {result.gets} GETs, at most "
                f"{result.gets_at_once_max} at once; processors {result.cpu_s / result.elapsed_s:.2f}; "
                f"{spread(rounds, _bytes_per_s)}"
            ),
        )
        reference = reference or figure


def _read(folder: str, case: _Case) -> StoreReaderResult:
    latency_s, is_tuned, readers = case
    options = StoreReaderOptions(folder=folder, at_once=readers, latency_s=latency_s, is_tuned=is_tuned)
    return measured("store_reader", options, StoreReaderResult)


def _bytes_per_s(result: StoreReaderResult) -> float:
    return result.bytes_per_s
