"""Carries out the decisions of scaling and retention: visits the streams every few seconds, off the path of appends.

A visit costs as much as the stream has open segments. Only streams with a policy are visited, and not idle ones, where
nothing is written and nothing can be merged or forgotten. What is decided becomes a record like any other request; when
it is refused, or the server is killed, the next visit decides again from what it finds.
"""

import asyncio
import contextlib
import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from millrace.model.lineage import Lineage
from millrace.model.policy import RetentionPolicy, ScalingKind, StreamConfig
from millrace.server.container.container import SegmentContainer
from millrace.server.container.state.labels import config_of
from millrace.server.container.state.segment import Segment
from millrace.server.container.state.stream import Stream
from millrace.server.errors import ServerError
from millrace.server.kinds.streams.catalog import Catalog
from millrace.server.kinds.streams.commands import StreamCommands
from millrace.server.kinds.streams.resizing import ScalePlan
from millrace.server.kinds.writers.uptime import Uptime
from millrace.wire import messages as m

from . import retention, scaling
from .cursor_lag import CursorLags
from .load import StreamLoads
from .options import MetricsOptions, StreamsOptions
from .retention import Cut, PartFacts, RetentionDecision, StreamFacts
from .silent_cursors import SilentCursors
from .traffic import StreamTraffic

logger = logging.getLogger(__name__)

DECISIONS_KEPT_COUNT: Final = 20
EXPLAINED_COUNT_MAX: Final = 500
"""Segments, and cursors, that an explanation names: it must fit one frame."""
LOAD_RETRY_S: Final = 1.0
REST_S: Final = 60.0
"""No stream is at rest before it was measured for so long."""
EXPLAIN_SAMPLING_S: Final = 300.0
"""For how long the rates of a stream without a policy are measured after it was explained."""


@dataclass(slots=True)
class StreamsStatistics:
    """What streams did by themselves since the server started."""

    scaling_streams: int = 0
    retaining_streams: int = 0
    splits_total: int = 0
    merges_total: int = 0
    truncations_total: int = 0
    truncated_bytes_total: int = 0
    refusals_total: int = 0


class StreamPolicyState:
    """What is remembered of one stream between two visits."""

    def __init__(self, options: StreamsOptions, *, now_s: float) -> None:
        self.since_s = now_s
        self.loads = StreamLoads(options)
        self.memory = scaling.Memory()
        self.reasons: dict[int, str] = {}
        # Of the cuts that retention made: when, why, and of how many bytes.
        self.truncations: deque[dict[str, Any]] = deque(maxlen=DECISIONS_KEPT_COUNT)
        self.retention_reasons: tuple[str, ...] = ()
        self.explained_s = float("-inf")


class ScalingLoop:
    """Scales and truncates the streams of one container."""

    def __init__(
        self,
        *,
        container: SegmentContainer,
        streams: StreamCommands,
        catalog: Catalog,
        uptime: Uptime,
        options: StreamsOptions,
        metrics: MetricsOptions,
    ) -> None:
        self._container = container
        self._state = container.state
        self._clock = container.clock
        self._streams = streams
        self._catalog = catalog
        self._options = options
        self._policy_states: dict[int, StreamPolicyState] = {}
        # Streams that scale by themselves and are not at rest; streams with a retention policy that hold nothing.
        self._awake: set[int] = set()
        self._empty: set[int] = set()
        self._uptime = uptime
        self.statistics = StreamsStatistics()
        self.traffic = StreamTraffic(metrics.streams_count_max)
        self.lags = CursorLags(container, catalog, uptime=uptime, silent_s=metrics.cursor_silence_s)
        self._silent_cursors = SilentCursors(container, streams, catalog, uptime=uptime)
        # What recovery has read was written before.
        self._state.take_written()
        self._written_s = self._clock.monotonic_s()

    async def run(self) -> None:
        """Visit the streams until it is cancelled, which undoes nothing."""
        await self._load_until_done()
        retained_s = self._clock.monotonic_s()
        while True:
            await self._clock.sleep(self._options.tick_s)
            await self._observe_clock()
            await self.scale()
            if self._clock.monotonic_s() - retained_s >= self._options.retention_interval_s:
                retained_s = self._clock.monotonic_s()
                await self.retain()

    async def _observe_clock(self) -> None:
        """Record a jump of the wall clock soon, for it is not known what was stamped between it and the record."""
        try:
            await self._uptime.record_jump()
        except ServerError as error:
            logger.warning("jump of the wall clock not recorded error=%s", error)

    async def _load_until_done(self) -> None:
        while True:
            try:
                return await self.load()
            except ServerError as error:
                logger.warning("policies of streams not read retry_after_s=%.1f error=%s", LOAD_RETRY_S, error)
                await self._clock.sleep(LOAD_RETRY_S)

    async def load(self) -> None:
        """Learn which streams have a policy; called once, first.

        Raises:
            StorageError: the checkpoint cannot be read.
        """
        await self._catalog.load()
        self._awake = set(self._catalog.scaling)

    async def scale(self) -> None:
        """Measure the streams that scale by themselves and are not at rest, and split and merge what is to be."""
        await self._name_busy()
        self._take_touched()
        now_s = self._clock.monotonic_s()
        self.statistics.scaling_streams = len(self._catalog.scaling)
        self._awake &= self._catalog.scaling
        asked = {
            stream_id
            for stream_id, policy_state in self._policy_states.items()
            if now_s - policy_state.explained_s < EXPLAIN_SAMPLING_S
        }
        for stream_id in self._awake | asked:
            await self._visit(stream_id, self._scale_stream)
        for stream_id, policy_state in list(self._policy_states.items()):
            if (
                stream_id not in self._awake
                and now_s - policy_state.explained_s >= EXPLAIN_SAMPLING_S
                and not (policy_state.truncations and stream_id in self._catalog.retaining)
            ):
                del self._policy_states[stream_id]

    async def retain(self) -> None:
        """Truncate the streams whose policy says that they hold too much."""
        self._take_touched()
        wanted = self._catalog.retaining
        self.statistics.retaining_streams = len(wanted)
        for stream_id in sorted(wanted - self._empty):
            await self._visit(stream_id, self._retain_stream, with_replaced=True)
        self._empty &= wanted
        await self._silent_cursors.expire(self._visit, without=wanted - self._empty)

    async def _visit(
        self, stream_id: int, visit: Callable[[Stream], Awaitable[None]], *, with_replaced: bool = False
    ) -> bool:
        """Visit a stream if it is still there; when it cannot be loaded, or changed, the next visit decides again.

        Args:
            with_replaced: whether the visit needs its replaced segments, beside the open ones.

        Returns:
            Whether nothing was refused.
        """
        required = m.Required(streams=[stream_id]) if with_replaced else m.Required(open_streams=[stream_id])
        is_done = True
        try:
            with await self._container.loader.pin(required):
                stream = self._state.streams.get(stream_id)
                if stream is not None:
                    await visit(stream)
        except ServerError as error:
            # Another request was faster, or the log takes nothing now.
            self.statistics.refusals_total += 1
            logger.warning("visit of a stream refused stream_id=%d error=%s", stream_id, error)
            is_done = False
        await asyncio.sleep(0)  # thousands of streams must not delay the appends
        return is_done

    async def _scale_stream(self, stream: Stream) -> None:
        now_s = self._clock.monotonic_s()
        if not stream.sealed:
            configuration = stream.configuration
            for plan in await self._look(stream, now_s=now_s):
                await self._carry_out(stream, plan, configuration=configuration)
        if self._is_at_rest(stream, now_s=now_s):
            self._awake.discard(stream.stream_id)

    async def _retain_stream(self, stream: Stream) -> None:
        policy = config_of(stream.configuration).retention
        if policy is None:
            return
        await self._silent_cursors.forget_silent(stream)
        decision = self._decide(stream, policy, is_sharp=False)
        if decision.near is not None:
            await self._sharpen(decision.near)
            decision = self._decide(stream, policy, is_sharp=True)
        self._policy_state(stream).retention_reasons = decision.kept_reasons
        if decision.cut is not None:
            await self._truncate(stream, decision.cut, decision.reason)
        if not self._facts(stream).size_bytes:
            self._empty.add(stream.stream_id)

    async def measure(self) -> None:
        """Bring `traffic` and `lags` up to now. Safe to cancel.

        Raises:
            StorageError: a stream cannot be loaded.
        """
        self._take_touched()
        await self._name_busy()
        await self.lags.measure()

    async def _name_busy(self) -> None:
        """Look up the names of streams that are shown from now on; those that cannot be loaded, the next time."""
        with contextlib.suppress(ServerError):
            for stream_id in self.traffic.unnamed:
                with await self._container.loader.pin(m.Required(open_streams=[stream_id])):
                    stream = self._state.streams.get(stream_id)
                    self.traffic.name(stream_id, None if stream is None else stream.name)

    def _take_touched(self) -> None:
        """Wake the streams that were written to, or reconfigured; count what was written."""
        before_s, self._written_s = self._written_s, self._clock.monotonic_s()
        sizes, events = self._state.take_written()
        touched = set(sizes)
        moved, self._state.moved_cursors = self._state.moved_cursors, set()
        self.traffic.forget(
            stream_id for stream_id, config in self._state.reconfigured_streams.items() if config is None
        )
        self.traffic.add(sizes, events, duration_s=self._written_s - before_s)
        self.lags.written(touched)
        self.lags.found(moved)
        self._silent_cursors.moved(moved)
        touched |= self._state.reconfigured_streams.keys()
        self._awake |= touched & self._catalog.scaling
        self._empty -= touched

    def _is_at_rest(self, stream: Stream, *, now_s: float) -> bool:
        """Return whether nothing can happen to a stream until it is written to: it is quiet and cannot be merged."""
        if stream.sealed:
            return True
        policy_state = self._policy_state(stream)
        return (
            now_s - policy_state.since_s >= REST_S
            and policy_state.loads.is_quiet
            and len(stream.open_parts) <= config_of(stream.configuration).scaling.segment_count
        )

    def explain(self, stream: Stream) -> dict[str, Any]:
        """Return what the policies of a stream see, decided last, and wait for. Its rates are measured for a while."""
        policy_state = self._policy_state(stream)
        policy_state.explained_s = self._clock.monotonic_s()
        config = config_of(stream.configuration)
        facts = self._facts(stream)
        return {
            "stream": stream.name,
            "epoch": stream.epoch,
            "sealed": stream.sealed,
            "size_bytes": facts.size_bytes,
            "policy": _policy_facts(config),
            "segments": [
                {
                    "segment_id": part.segment_id,
                    "low": part.key_range.fractions[0],
                    "high": part.key_range.fractions[1],
                    "size_bytes": facts.parts[part.segment_id].length - facts.parts[part.segment_id].start_offset,
                    **policy_state.loads.rates(part.segment_id),
                    "remark": policy_state.reasons.get(part.segment_id, ""),
                }
                for part in policy_state.loads.busiest(stream.open_parts)[:EXPLAINED_COUNT_MAX]
                if part.segment_id in facts.parts
            ],
            "scalings": [
                {"at_us": epoch.started_us, "epoch": epoch.number, "reason": epoch.cause}
                for epoch in stream.epochs[1:][-DECISIONS_KEPT_COUNT:]
            ],
            "truncations": list(policy_state.truncations),
            "retention": list(policy_state.retention_reasons) if config.retention else ["everything is kept"],
            "cursors": _cursor_facts(stream, facts),
        }

    # --- scaling ---

    def _policy_state(self, stream: Stream) -> StreamPolicyState:
        return self._policy_states.setdefault(
            stream.stream_id, StreamPolicyState(self._options, now_s=self._clock.monotonic_s())
        )

    async def _look(self, stream: Stream, *, now_s: float) -> tuple[ScalePlan, ...]:
        """Measure a stream and return what to do with it."""
        policy_state = self._policy_state(stream)
        policy = config_of(stream.configuration).scaling
        parts = [part for part in stream.open_parts if part.segment_id in self._state.segments]
        segments = [self._state.segments[part.segment_id] for part in parts]
        policy_state.loads.measure(segments, now_s=now_s)
        await policy_state.loads.sample(
            [segment for segment in segments if segment.segment_id in policy_state.memory.hot_since_s],
            merged=self._state.merged,
        )
        decision = scaling.decide(
            policy,
            policy_state.loads.loads(parts, kind=policy.kind),
            memory=policy_state.memory,
            now_s=now_s,
            options=self._options,
        )
        policy_state.memory = decision.memory
        policy_state.reasons = dict(decision.reasons)
        return decision.plans

    async def _carry_out(self, stream: Stream, plan: ScalePlan, *, configuration: str) -> None:
        """Carry out a plan, unless the policy that asked for it was replaced: then the next visit decides again.

        A new policy may have been on its way to the disk when the plan was made. Once nothing is, the scale is
        decided without a wait after this check.
        """
        await self._streams.settled(stream.name)
        if stream.configuration != configuration:
            return
        await self._streams.scale(
            stream.name,
            sealed_ids=plan.sealed_ids,
            ranges=[m.KeyRangeRecord(low, last) for low, last in plan.ranges],
            cause=plan.reason,
        )
        if len(plan.ranges) > 1:
            self.statistics.splits_total += 1
        else:
            self.statistics.merges_total += 1
        logger.info("stream scaled stream=%s epoch=%d reason=%r", stream.name, stream.epoch, plan.reason)

    # --- retention ---

    def _decide(self, stream: Stream, policy: RetentionPolicy, *, is_sharp: bool) -> RetentionDecision:
        return retention.decide(
            policy,
            self._facts(stream),
            cursors=_cursors(stream),
            young_from_us=self._uptime.old_before_us(policy.min_age_s or 0.0),
            old_before_us=self._uptime.old_before_us(policy.max_age_s or 0.0),
            is_sharp=is_sharp,
        )

    def _facts(self, stream: Stream) -> StreamFacts:
        parts = {}
        for part in stream.parts:
            segment = self._state.segments.get(part.segment_id)
            if segment is None:  # lost to damage
                continue
            offsets, stamps_us = _borders(segment)
            parts[part.segment_id] = PartFacts(
                start_offset=segment.start_offset,
                length=segment.length,
                offsets=offsets,
                stamps_us=stamps_us,
                end_stamp_us=_end_stamp_us(segment),
            )
        return StreamFacts(parts, Lineage(stream.history()))

    async def _sharpen(self, near: Cut) -> None:
        """Load the borders after a cut that only the chunks have."""
        for segment_id, offset in near.positions.items():
            segment = self._state.segments.get(segment_id)
            if segment is not None and offset < segment.flushed_offset:
                await self._container.reader.load_index(segment, offset, offset + 1)

    async def _truncate(self, stream: Stream, cut: Cut, reason: str) -> None:
        segments = [self._state.segments[segment_id] for segment_id in cut.progress]
        before = self._facts(stream).size_bytes
        positions = [m.SavedPosition(segment_id, offset) for segment_id, offset in cut.positions.items()]
        await self._streams.truncate(stream.name, positions)
        for segment in segments:
            self._container.reader.forget(segment)
        size_bytes = max(0, before - cut.remaining_bytes)
        self._policy_state(stream).truncations.append(
            {"at_us": self._clock.unix_us(), "reason": reason, "size_bytes": size_bytes}
        )
        self.statistics.truncations_total += 1
        self.statistics.truncated_bytes_total += size_bytes
        logger.info("stream truncated stream=%s bytes=%d reason=%r", stream.name, size_bytes, reason)


def _borders(segment: Segment) -> tuple[Sequence[int], Sequence[int]]:
    """Return offsets and stamps of the borders that are known: those of the sparse index, and every run in the tail."""
    offsets, stamps_us = segment.index.columns()
    extents = segment.tail.extents
    if not extents:
        return offsets, stamps_us
    place = bisect_left(offsets, extents[0].offset)
    # The stamps of the index never go back; those of the tail may.
    stamps = accumulate([*stamps_us[:place], *(extent.wall_time_us for extent in extents)], max)
    return [*offsets[:place], *(extent.offset for extent in extents)], list(stamps)


def _end_stamp_us(segment: Segment) -> int:
    """Return a time after which nothing in a segment was written; what is not known is as late as can be."""
    stamps = list(segment.index.columns()[1][-1:])
    if segment.tail:
        stamps.append(segment.tail.extents[-1].wall_time_us)
    elif segment.chunks:
        stamps.append(segment.chunks[-1].end_wall_time_us)
    elif segment.length > segment.start_offset:
        return (1 << 63) - 1
    return max(stamps, default=segment.created_us)


def _cursors(stream: Stream) -> dict[str, dict[int, int]]:
    return {
        cut.name: {segment_id: offset for segment_id, offset, _ in cut.positions}
        for cut in stream.cuts.values()
        if cut.kind == m.CutKind.CURSOR
    }


def _cursor_facts(stream: Stream, facts: StreamFacts) -> list[dict[str, Any]]:
    """Return of each cursor, the slowest first, what it has not read, and the bytes that it alone holds back."""
    passed = {name: retention.progress_of_cut(facts, positions) for name, positions in sorted(_cursors(stream).items())}
    holds = retention.held_bytes(facts, passed)
    slowest_first = sorted(passed, key=lambda name: sum(passed[name].values()))[:EXPLAINED_COUNT_MAX]
    return [
        {
            "name": name,
            "saved_us": stream.cuts[m.CutKind.CURSOR, name].saved_us,
            "hold_s": stream.cuts[m.CutKind.CURSOR, name].hold_s,
            "unread_bytes": retention.as_cut(facts, passed[name]).remaining_bytes,
            "holds_bytes": holds[name],
        }
        for name in slowest_first
    ]


def _policy_facts(config: StreamConfig) -> dict[str, Any]:
    return {
        "scaling": config.scaling.to_dict() if config.scaling.kind is not ScalingKind.FIXED else {"kind": "fixed"},
        "retention": None if config.retention is None else config.retention.to_dict(),
        "tags": list(config.tags),
    }
