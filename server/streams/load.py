"""The load of the segments of a stream, measured now and then from outside: appends pay nothing for it.

Rates come from the lengths and event counts that segments have anyway. Which keys the load falls on is sampled only of
segments that may be split.
"""

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from millrace.model.lineage import StreamPart
from millrace.model.policy import ScalingKind
from millrace.server.container.state.segment import Segment

from .key_sampling import Sample, recent_extents, recent_keys
from .options import StreamsOptions
from .scaling import SegmentLoad

SAMPLES_KEPT_COUNT: Final = 2048


class Meter:
    """A rate, averaged over a window: what happened a window ago weighs 1/e of what happened now."""

    __slots__ = ("_rate", "_weight", "_window_s")

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._rate = 0.0
        self._weight = 0.0  # of what was seen; the rest of 1 is the time before, of which nothing is known

    def add(self, count: float, duration_s: float) -> None:
        """Record `count` occurrences in the last `duration_s` seconds."""
        part = 1 - math.exp(-duration_s / self._window_s)
        self._rate += part * (count / duration_s - self._rate)
        self._weight += part * (1 - self._weight)

    @property
    def per_s(self) -> float:
        """The average, over the time that was seen at most."""
        return self._rate / self._weight if self._weight else 0.0


class _Rates:
    """How fast a count rises: since the previous measurement, and over the two windows."""

    __slots__ = ("_count", "fast", "last_per_s", "slow")

    def __init__(self, count: int, options: StreamsOptions) -> None:
        self._count = count
        self.last_per_s = 0.0
        self.fast = Meter(options.fast_window_s)
        self.slow = Meter(options.slow_window_s)

    def measure(self, count: int, duration_s: float) -> None:
        """Take what the count has become in `duration_s` seconds."""
        new, self._count = count - self._count, count
        self.last_per_s = new / duration_s
        self.fast.add(new, duration_s)
        self.slow.add(new, duration_s)


class _SegmentMeter:
    """What is measured of one open segment."""

    __slots__ = ("bytes", "events", "sampled_offset", "samples")

    def __init__(self, *, length: int, event_count: int, options: StreamsOptions) -> None:
        self.bytes = _Rates(length, options)
        self.events = _Rates(event_count, options)
        # Up to where events were sampled.
        self.sampled_offset = 0
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_KEPT_COUNT)


QUIET_PER_S: Final = 1.0


class StreamLoads:
    """The loads of the open segments of one stream."""

    def __init__(self, options: StreamsOptions) -> None:
        self._options = options
        self._meters: dict[int, _SegmentMeter] = {}
        self._measured_s: float | None = None

    def measure(self, segments: Sequence[Segment], *, now_s: float) -> None:
        """Measure the open segments of the stream; called once a tick."""
        before_s, self._measured_s = self._measured_s, now_s
        duration_s = 0.0 if before_s is None else now_s - before_s
        meters: dict[int, _SegmentMeter] = {}
        for segment in segments:
            meter = self._meters.get(segment.segment_id)
            if meter is None:
                # Of a segment that was created since the last measurement, all that it holds is new.
                is_new = before_s is not None
                meter = _SegmentMeter(
                    length=0 if is_new else segment.length,
                    event_count=0 if is_new else segment.event_count,
                    options=self._options,
                )
            meters[segment.segment_id] = meter
            if duration_s > 0:
                meter.bytes.measure(segment.length, duration_s)
                meter.events.measure(segment.event_count, duration_s)
        self._meters = meters

    async def sample(self, segments: Iterable[Segment], *, merged: Mapping[int, Segment]) -> None:
        """Read keys out of the newest blocks of some segments; what was sampled of others before is forgotten.

        Cancelling is safe.

        Args:
            merged: see `recent_extents`.
        """
        wanted = {segment.segment_id: segment for segment in segments}
        for segment_id, meter in list(self._meters.items()):
            segment = wanted.get(segment_id)
            if segment is None:
                meter.samples.clear()
            else:
                extents = recent_extents(segment, meter.sampled_offset, merged=merged)
                meter.sampled_offset = segment.length
                if extents:
                    meter.samples.extend(await asyncio.to_thread(recent_keys, extents))

    def loads(self, parts: Iterable[StreamPart], *, kind: str) -> list[SegmentLoad]:
        """Return the loads of some open parts, counted in what a policy counts."""
        result = []
        for part in parts:
            meter = self._meters[part.segment_id]
            rates = meter.bytes if kind is ScalingKind.BYTES else meter.events
            weights: dict[int, float] = {}
            unkeyed = 0.0
            for place, size in meter.samples:
                weight = float(size) if kind is ScalingKind.BYTES else 1.0
                if place is None:
                    unkeyed += weight
                elif place in part.key_range:
                    weights[place] = weights.get(place, 0.0) + weight
            result.append(
                SegmentLoad(
                    segment_id=part.segment_id,
                    low=part.key_range.low,
                    last=part.key_range.last,
                    last_per_s=rates.last_per_s,
                    fast_per_s=rates.fast.per_s,
                    slow_per_s=rates.slow.per_s,
                    weights=sorted(weights.items()),
                    weight_unkeyed=unkeyed,
                    sample_count=len(meter.samples),
                )
            )
        return result

    @property
    def is_quiet(self) -> bool:
        """Whether nothing was written for so long that even the slow rates have faded."""
        return all(meter.bytes.slow.per_s < QUIET_PER_S for meter in self._meters.values())

    def busiest(self, parts: Iterable[StreamPart]) -> list[StreamPart]:
        """Return parts in the order of their rates, the highest first; those of equal rates as they came."""
        return sorted(
            parts,
            key=lambda part: meter.bytes.fast.per_s if (meter := self._meters.get(part.segment_id)) else 0.0,
            reverse=True,
        )

    def rates(self, segment_id: int) -> dict[str, float]:
        """Return the rates of a segment, for people."""
        meter = self._meters.get(segment_id)
        if meter is None:
            return {}
        return {
            "bytes_per_s": round(meter.bytes.fast.per_s, 1),
            "bytes_per_s_slow": round(meter.bytes.slow.per_s, 1),
            "events_per_s": round(meter.events.fast.per_s, 1),
            "events_per_s_slow": round(meter.events.slow.per_s, 1),
        }
