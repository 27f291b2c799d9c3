"""Detects sequential readers: readers whose read starts where an earlier read of the segment ended.

Readers are not identified: the place where a read ended is remembered as a *run*, and the read that starts there
continues it. Of two readers side by side the first takes over the run, and the second finds it again at its end.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from .options import CacheOptions

_FIRST_PAGES: Final = 2


@dataclass(slots=True)
class Run:
    """Progress of one sequential reader."""

    length: int = 0
    """Bytes read without a gap."""
    horizon: int = 0
    """The end of the pages requested ahead of the reader."""


class SequentialReaders:
    """The runs of the most recent readers, by the offset where each continues."""

    def __init__(self, options: CacheOptions) -> None:
        self._runs_max = options.readers_max
        self._ahead_bytes_max = options.read_ahead_bytes
        self._page_size = options.page_size_bytes
        # Least recently read first.
        self._runs: OrderedDict[tuple[int, int], Run] = OrderedDict()

    def __len__(self) -> int:
        return len(self._runs)

    def take(self, segment_id: int, offset: int) -> Run:
        """Return the run that a read at `offset` continues, or a new one; `put` it back when the read has ended."""
        return self._runs.pop((segment_id, offset), None) or Run()

    def put(self, run: Run, segment_id: int, *, start: int, end: int) -> None:
        """Record that a read of the run took [start, end)."""
        run.length += end - start
        key = (segment_id, end)
        present = self._runs.get(key)
        if present is None or present.length < run.length:
            self._runs[key] = run
        self._runs.move_to_end(key)
        if len(self._runs) > self._runs_max:
            self._runs.popitem(last=False)

    def plan(self, run: Run, *, end: int, limit: int) -> tuple[int, int]:
        """Return the range to fetch ahead of a read that will end at `end`; empty if there is nothing to fetch.

        As far ahead as the reader has read so far, at least two pages and at most the option; nothing for a first read,
        and nothing from `limit` on. Whole pages at a time: until a page is due, the range is empty.
        """
        start = max(end, run.horizon)
        if not run.length or not self._ahead_bytes_max:
            return start, start
        distance = min(self._ahead_bytes_max, max(run.length, _FIRST_PAGES * self._page_size))
        stop = min(limit, end + distance)
        if stop - start < self._page_size and stop < limit:
            return start, start
        return start, max(start, stop)
