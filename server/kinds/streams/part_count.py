"""The bound on the segments of a stream that can be read, checked before a scale or a commit begins an epoch."""

from typing import Final

from millrace.model.limits import SEGMENTS_PER_STREAM_MAX
from millrace.server.container.state.stream import Stream
from millrace.server.errors import InvalidArgumentError

PARTS_PER_STREAM_COUNT_MAX: Final = 64 * SEGMENTS_PER_STREAM_MAX
"""Segments that are open, or held events when they were replaced, and are not truncated."""


def check_part_count(stream: Stream, created_count: int) -> None:
    """Raise InvalidArgumentError if a stream may not have so many segments more."""
    held_count = stream.part_count - stream.empty_count
    if held_count + created_count > PARTS_PER_STREAM_COUNT_MAX:
        raise InvalidArgumentError(
            f"the stream has {held_count} segments that are open, or hold events and were replaced; with"
            f" {created_count} more it would have over {PARTS_PER_STREAM_COUNT_MAX}. Truncate it first",
            subject=stream.name,
        )
