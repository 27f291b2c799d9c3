"""Write traffic by stream: of each of the busiest, and of all others together.

A server may have a million streams, and Prometheus must not have a million series. So a bounded number of streams is
*shown*; what the others write counts as theirs together. What was written while a stream was not shown stays with the
others, so no counter ever falls, and the sum of all rates is right at any time. A stream that is not shown any more
loses its counter; if it is shown again it begins at 0, which Prometheus takes for a restart.

The state counts per batch of the log; here it is taken every few seconds, in a time that grows with the streams that
were written to only for sums and for finding the largest, both of which the interpreter does without running our code.
"""

import math
from collections.abc import Iterable, Mapping
from heapq import nlargest
from operator import itemgetter
from typing import Final, NamedTuple

WINDOW_S: Final = 60.0
"""How long it takes a stream that is quiet to count for 1/e of what it did."""
AHEAD: Final = 1.5
"""So many times busier than a shown stream is one that takes its place: two that are alike do not take turns."""
CANDIDATES_PER_PLACE: Final = 4


class WriteTotals(NamedTuple):
    """What was written to a stream, or to several."""

    bytes: int = 0
    events: int = 0


class StreamTraffic:
    """The streams of one container that are shown, and what was written to them since then.

    Args:
        count_max: streams that are shown.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._shown: dict[int, WriteTotals] = {}
        self._names: dict[int, str] = {}
        self._others = WriteTotals()
        # Of those that are shown, and of the busiest others: bytes, those of long ago weigh less.
        self._weights: dict[int, float] = {}
        # By name; replaced as a whole, so that any thread may read it.
        self.rows: tuple[tuple[str, WriteTotals], ...] = ()
        self.others = self._others

    @property
    def unnamed(self) -> list[int]:
        """Ids of streams that are shown once `name` has told their names."""
        return [stream_id for stream_id in self._shown if stream_id not in self._names]

    def name(self, stream_id: int, name: str | None) -> None:
        """Tell the name of a stream, None if there is no such stream (any more)."""
        if name is None:
            self.forget([stream_id])
        elif stream_id in self._shown:  # another one may have taken its place while it was looked up
            self._names[stream_id] = name
        self._publish()

    def forget(self, stream_ids: Iterable[int]) -> None:
        """Show some streams no more: they were deleted."""
        for stream_id in stream_ids:
            self._shown.pop(stream_id, None)
            self._names.pop(stream_id, None)
            self._weights.pop(stream_id, None)

    def add(self, sizes: Mapping[int, int], events: Mapping[int, int], *, duration_s: float) -> None:
        """Take what was written in the last `duration_s` seconds, by the id of the stream; decide who is shown."""
        total = WriteTotals(sum(sizes.values()), sum(events.values()))
        shown = WriteTotals()
        for stream_id, before in self._shown.items():
            if stream_id in sizes:
                new = WriteTotals(sizes[stream_id], events[stream_id])
                self._shown[stream_id] = _sum(before, new)
                shown = _sum(shown, new)
        self._others = _sum(self._others, WriteTotals(total.bytes - shown.bytes, total.events - shown.events))
        self._weigh(sizes, duration_s)
        self._choose()
        self._publish()

    def _weigh(self, sizes: Mapping[int, int], duration_s: float) -> None:
        faded = math.exp(-duration_s / WINDOW_S)
        weights = {stream_id: weight * faded for stream_id, weight in self._weights.items()}
        heaviest = nlargest(CANDIDATES_PER_PLACE * self._count_max, sizes.items(), key=itemgetter(1))
        # What is shown is counted however little it is.
        for stream_id in {stream_id for stream_id, _ in heaviest} | (self._shown.keys() & sizes.keys()):
            weights[stream_id] = weights.get(stream_id, 0.0) + sizes[stream_id]
        kept = dict(nlargest(CANDIDATES_PER_PLACE * self._count_max, weights.items(), key=itemgetter(1)))
        self._weights = kept | {stream_id: weights[stream_id] for stream_id in self._shown}

    def _choose(self) -> None:
        waiting = sorted(
            ((weight, stream_id) for stream_id, weight in self._weights.items() if stream_id not in self._shown),
            reverse=True,
        )
        for weight, stream_id in waiting:
            if len(self._shown) >= self._count_max:
                least = min(self._shown, key=self._weights.__getitem__, default=None)
                if least is None or weight <= AHEAD * self._weights[least]:
                    break
                self.forget([least])
            self._shown[stream_id] = WriteTotals()

    def _publish(self) -> None:
        named = ((name, self._shown[stream_id]) for stream_id, name in self._names.items() if stream_id in self._shown)
        self.rows = tuple(sorted(named))
        self.others = self._others


def _sum(one: WriteTotals, other: WriteTotals) -> WriteTotals:
    return WriteTotals(one.bytes + other.bytes, one.events + other.events)
