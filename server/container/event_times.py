"""Bounds of event times, held for appends of any client.

The header of a block names the earliest and the latest time in it, so an append inside of the bounds costs one look at
that. Only a block outside of them is refused, or packed again; that is done in a thread, before the append is admitted.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

from millrace.model.block_times import TimedBlock, blocks_of, with_times_between
from millrace.model.checksum import Buffer
from millrace.model.errors import BlockCorruptError, EventTooLargeError, MissingExtraError
from millrace.model.event_times import EventTimeBounds, OutsideTimes, unit_hint
from millrace.model.limits import APPEND_SIZE_BYTES_MAX
from millrace.server.errors import EventTimeError, InvalidArgumentError
from millrace.server.host.clock import Clock
from millrace.wire.append_run import AppendRun
from millrace.wire.framing import with_payload
from millrace.wire.limits import MIB

from .state.container_state import ContainerState
from .state.segment import Segment
from .state.transaction import Transaction

CLAMPED_BLOCKS_COUNT_MAX: Final = 1000
"""In one append: small compressed blocks may be large ones when unpacked."""
STEP_APPENDS_COUNT_MAX: Final = 100
STEP_UNPACKED_BYTES: Final = 1 * MIB
"""Of one step of a thread that clamps: other connections wait for it."""


def _bounds_for(
    segment: Segment, transaction: Transaction | None, bounds: Mapping[int, EventTimeBounds]
) -> EventTimeBounds | None:
    """Return the bounds of the stream that a segment is of, or that a part of a transaction will be merged into.

    Args:
        bounds: by stream id.
    """
    if transaction is None:
        return bounds.get(segment.stream_id)
    part = transaction.admitted_parts.get(segment.segment_id)
    return None if part is None else bounds.get(part.stream_id)


def check_times(
    state: ContainerState, run: AppendRun, segment: Segment, transaction: Transaction | None, *, now_us: int
) -> None:
    """Raise unless all event times of a run are within bounds that refuse others.

    Args:
        segment, transaction: the segment to which the run is appended, and the open transaction of which it is a part.

    Raises:
        EventTimeError: a time is outside.
        InvalidArgumentError: an append is not made of event blocks.
    """
    bounds = _bounds_for(segment, transaction, state.event_times)
    if bounds is None or bounds.outside is not OutsideTimes.REFUSE:
        return
    low, high = limits_us = bounds.limits_us(now_us)
    for frame in _frames(run):
        for block in _blocks(frame[run.header_size :], subject=segment.name):
            if not block.is_within(low, high):
                assert block.times is not None, "a block without times is within all bounds"
                raise _refusal(block.times, bounds, limits_us=limits_us, now_us=now_us, subject=segment.name)


class EventTimeClamp:
    """Clamps event times in a thread: a block is unpacked and packed again for it.

    One step at a time for all connections, each of some appends, so that connections take turns and other work finds
    a thread. Belongs to one event loop.
    """

    def __init__(self, state: ContainerState, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._lock = asyncio.Lock()

    def is_due(self, run: AppendRun) -> bool:
        """Return whether `clamped` changes or refuses a run. Its segment is in memory."""
        if not self._state.event_times or (bounds := self._bounds(run)) is None:
            return False
        low, high = bounds.limits_us(self._clock.unix_us())
        try:
            return not all(
                block.is_within(low, high) for frame in _frames(run) for block in blocks_of(frame[run.header_size :])
            )
        except BlockCorruptError:
            return True

    async def clamped(self, run: AppendRun) -> AppendRun:
        """Return a run whose event times are all within the bounds: the given one, or a copy. Safe to cancel.

        Its segment is in memory until this returns.

        Raises:
            InvalidArgumentError: an append is not made of event blocks, or cannot be packed again.
        """
        if not self.is_due(run):
            return run
        bounds, segment = self._bounds(run), self._state.admitted_segment(run.segment_id)
        assert bounds is not None
        assert segment is not None
        low, high = bounds.limits_us(self._clock.unix_us())
        frames, subject = _frames(run), segment.name
        pieces: list[Buffer] = []

        def clamp_some() -> None:
            unpacked_bytes = 0
            for frame in islice(frames, STEP_APPENDS_COUNT_MAX):
                payload, size = _clamped_payload(frame[run.header_size :], low, high, subject=subject)
                pieces.append(frame if payload is None else _with_payload(frame, payload, run, subject=subject))
                unpacked_bytes += size
                if unpacked_bytes >= STEP_UNPACKED_BYTES:
                    break

        while len(pieces) < run.frame_count:
            async with self._lock:
                await asyncio.to_thread(clamp_some)
        sizes = set(map(len, pieces))
        return replace(run, frames=b"".join(pieces), frame_size=sizes.pop() if len(sizes) == 1 else 0)

    def _bounds(self, run: AppendRun) -> EventTimeBounds | None:
        """Return the bounds to which event times of a run are clamped, None if they are not."""
        state = self._state
        segment = state.admitted_segment(run.segment_id)
        if segment is None:
            return None
        transaction = state.open_transactions.owner(run.segment_id) if segment.is_internal else None
        bounds = _bounds_for(segment, transaction, state.event_times)
        return None if bounds is None or bounds.outside is not OutsideTimes.CLAMP else bounds


def _frames(run: AppendRun) -> Iterator[memoryview]:
    """Yield the frames of the appends of a run."""
    frames, start = memoryview(run.frames), 0
    for _ in range(run.frame_count):
        end = start + int.from_bytes(frames[start : start + 4], "little")
        yield frames[start:end]
        start = end


def _blocks(payload: memoryview, *, subject: str) -> list[TimedBlock]:
    """Return the blocks of an append; raise InvalidArgumentError if it is not made of blocks."""
    try:
        return blocks_of(payload)
    except BlockCorruptError as error:
        raise InvalidArgumentError(f"the stream has bounds of event times: {error}", subject=subject) from None


def _clamped_payload(payload: memoryview, low: int, high: int, *, subject: str) -> tuple[bytes | None, int]:
    """Return the payload of an append with clamped times, None if none is outside, and how many bytes were unpacked.

    Raises:
        InvalidArgumentError: as `EventTimeClamp.clamped`.
    """
    blocks = _blocks(payload, subject=subject)
    outside = [block for block in blocks if not block.is_within(low, high)]
    if not outside:
        return None, 0
    unpacked_bytes = sum(block.unpacked_size_bytes for block in outside)
    if len(outside) > CLAMPED_BLOCKS_COUNT_MAX or unpacked_bytes > APPEND_SIZE_BYTES_MAX:
        raise InvalidArgumentError(
            f"event times cannot be clamped: in one append, {CLAMPED_BLOCKS_COUNT_MAX} blocks may be changed, of"
            f" {APPEND_SIZE_BYTES_MAX} bytes when not compressed, not {len(outside)} blocks of {unpacked_bytes} bytes",
            subject=subject,
        )
    try:
        clamped = b"".join(
            payload[block.start : block.end]
            if block.is_within(low, high)
            else with_times_between(payload[block.start : block.end], low, high)
            for block in blocks
        )
    except (BlockCorruptError, EventTooLargeError, MissingExtraError) as error:
        raise InvalidArgumentError(f"event times cannot be clamped: {error}", subject=subject) from None
    return clamped, unpacked_bytes


def _with_payload(frame: memoryview, payload: bytes, run: AppendRun, *, subject: str) -> bytes:
    """Return the frame of an append of a run with another payload; raise InvalidArgumentError if that is too large."""
    if len(payload) > APPEND_SIZE_BYTES_MAX:
        # Packed again, blocks may be larger: another implementation may compress better.
        raise InvalidArgumentError(
            f"event times cannot be clamped: the append would hold {len(payload)} bytes, and at most"
            f" {APPEND_SIZE_BYTES_MAX} are allowed; send fewer events in one append",
            subject=subject,
        )
    return with_payload(frame, payload, header_size=run.header_size)


def _refusal(
    times: tuple[int, int], bounds: EventTimeBounds, *, limits_us: tuple[int, int], now_us: int, subject: str
) -> EventTimeError:
    wrong_us = times[0] if times[0] < limits_us[0] else times[1]
    distance_s = abs(wrong_us - now_us) / 1e6
    side, most_s = ("before", bounds.past_s_max) if wrong_us < now_us else ("after", bounds.future_s_max)
    hint = unit_hint(wrong_us)
    return EventTimeError(
        f"an event has timestamp_us={wrong_us}, {distance_s:,.0f} s {side} the clock of the server; the stream takes "
        f"events of at most {most_s:,.0f} s {side} it" + (f". {hint}" if hint else ""),
        subject=subject,
    )
