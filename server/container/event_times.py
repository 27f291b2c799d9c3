"""Bounds of event times, held for appends of any client.

The header of a block names the earliest and the latest time in it, so an append inside of the bounds costs one look at
that. Only a block outside of them is refused, or packed again.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from millrace.model.block_times import blocks_of, with_times_between
from millrace.model.checksum import Buffer
from millrace.model.errors import BlockCorruptError, EventTooLargeError, MissingExtraError
from millrace.model.event_times import EventTimeBounds, OutsideTimes, unit_hint
from millrace.model.limits import APPEND_SIZE_BYTES_MAX
from millrace.server.errors import EventTimeError, InvalidArgumentError
from millrace.wire.append_run import AppendRun
from millrace.wire.framing import with_payload

from .state.segment import Segment
from .state.transaction import Transaction

CLAMPED_BLOCKS_COUNT_MAX: Final = 1000
"""In one append. Clamping is done in the event loop, and small compressed blocks may be large ones when unpacked."""


def bounds_for(
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


def within_bounds(run: AppendRun, bounds: EventTimeBounds, *, now_us: int, subject: str) -> AppendRun:
    """Return a run whose event times are all within the bounds: the given one, or a copy with clamped times.

    Raises:
        EventTimeError: a time is outside, and the bounds refuse it.
        InvalidArgumentError: an append is not made of event blocks, or cannot be packed again.
    """
    limits_us = bounds.limits_us(now_us)
    frames, pieces, start = memoryview(run.frames), list[Buffer](), 0
    for _ in range(run.frame_count):
        end = start + int.from_bytes(frames[start : start + 4], "little")
        frame = frames[start:end]
        payload = _payload_within(frame[run.header_size :], bounds, limits_us=limits_us, now_us=now_us, subject=subject)
        pieces.append(frame if payload is None else with_payload(frame, payload, header_size=run.header_size))
        start = end
    if all(isinstance(piece, memoryview) for piece in pieces):
        return run
    sizes = set(map(len, pieces))
    return replace(run, frames=b"".join(pieces), frame_size=sizes.pop() if len(sizes) == 1 else 0)


def _payload_within(
    payload: memoryview, bounds: EventTimeBounds, *, limits_us: tuple[int, int], now_us: int, subject: str
) -> bytes | None:
    """Return the payload of an append with clamped times, None if none is outside. Raises as `within_bounds`."""
    low, high = limits_us
    try:
        blocks = blocks_of(payload)
    except BlockCorruptError as error:
        raise InvalidArgumentError(f"the stream has bounds of event times: {error}", subject=subject) from None
    outside = [block for block in blocks if not block.is_within(low, high)]
    if not outside:
        return None
    if bounds.outside is OutsideTimes.REFUSE:
        assert outside[0].times is not None, "a block without times is within all bounds"
        raise _refusal(outside[0].times, bounds, limits_us=limits_us, now_us=now_us, subject=subject)
    unpacked_bytes = sum(block.unpacked_size_bytes for block in outside)
    if len(outside) > CLAMPED_BLOCKS_COUNT_MAX or unpacked_bytes > APPEND_SIZE_BYTES_MAX:
        raise InvalidArgumentError(
            f"event times cannot be clamped: in one append, {CLAMPED_BLOCKS_COUNT_MAX} blocks may be changed, of"
            f" {APPEND_SIZE_BYTES_MAX} bytes when not compressed, not {len(outside)} blocks of {unpacked_bytes} bytes",
            subject=subject,
        )
    try:
        return b"".join(
            payload[block.start : block.end]
            if block.is_within(low, high)
            else with_times_between(payload[block.start : block.end], low, high)
            for block in blocks
        )
    except (BlockCorruptError, EventTooLargeError, MissingExtraError) as error:
        raise InvalidArgumentError(f"event times cannot be clamped: {error}", subject=subject) from None


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
