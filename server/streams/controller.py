"""Decisions about streams: each is one record in the log of their home container.

The segments of a stream are created, sealed, truncated and deleted by the record of the stream itself, so that all of
them change together, also when the server is killed between any two instructions.
"""

import asyncio
from collections.abc import Sequence

from millrace.server.container.container import SegmentContainer
from millrace.server.container.state import Stream
from millrace.server.errors import (
    CutInvalidError,
    InvalidArgumentError,
    OffsetBeyondEndError,
    StreamNotFoundError,
    StreamNotSealedError,
    StreamSealedError,
)
from millrace.wire import frames as f
from millrace.wire.limits import KIB, SEGMENTS_PER_STREAM_MAX
from millrace.wire.names import checked_name, equal_ranges

CONFIGURATION_SIZE_BYTES_MAX = 16 * KIB


class StreamController:
    """Creates, describes, seals, truncates and deletes streams."""

    def __init__(self, container: SegmentContainer) -> None:
        self._container = container
        self._state = container.state
        self._creating: dict[str, asyncio.Future[None]] = {}

    def find(self, name: str) -> Stream:
        """Return a stream by name.

        Raises:
            StreamNotFoundError: there is none.
        """
        stream = self._state.streams_by_name.get(name)
        if stream is None:
            raise StreamNotFoundError("there is no such stream", subject=name)
        return stream

    def describe(self, stream: Stream, *, created: bool = False) -> f.StreamInfo:
        """Return what is known of a stream and its segments, as a message."""
        segments = []
        for segment_id, low, last in stream.segments:
            segment = self._container.segment(segment_id)
            segments.append(
                f.StreamSegment(
                    segment_id,
                    low,
                    last,
                    segment.start_offset,
                    segment.length,
                    segment.event_count,
                    int(segment.sealed),
                )
            )
        return f.StreamInfo(
            created=int(created),
            stream_id=stream.stream_id,
            created_us=stream.created_us,
            sealed=int(stream.sealed),
            name=stream.name,
            configuration=stream.configuration,
            segments=segments,
        )

    async def create(self, name: str, *, segment_count: int, configuration: str) -> tuple[Stream, bool]:
        """Create a stream with that many segments of equal key ranges; return it and whether it is new.

        Raises:
            InvalidNameError: the name is not of the form scope/name.
            InvalidArgumentError: the number of segments, or the configuration, is out of bounds.
        """
        checked_name(name, kind="stream name")
        if not 1 <= segment_count <= SEGMENTS_PER_STREAM_MAX:
            raise InvalidArgumentError(
                f"a stream has 1 to {SEGMENTS_PER_STREAM_MAX} segments, not {segment_count}", subject=name
            )
        if len(configuration.encode()) > CONFIGURATION_SIZE_BYTES_MAX:
            raise InvalidArgumentError(
                f"a configuration has at most {CONFIGURATION_SIZE_BYTES_MAX} bytes", subject=name
            )
        # A done one stays listed until its callback runs; by then the stream is there.
        while (creating := self._creating.get(name)) is not None and not creating.done():
            await asyncio.shield(creating)
        if name in self._state.streams_by_name:
            return self.find(name), False
        record = f.StreamCreated(
            stream_id=self._state.take_id(),
            created_us=self._container.clock.unix_us(),
            name=name,
            configuration=configuration,
            segments=[
                f.SegmentRangeRecord(self._state.take_id(), key_range.low, key_range.high - 1)
                for key_range in equal_ranges(segment_count)
            ],
        )
        decided = self._creating[name] = self._container.decide(record)
        decided.add_done_callback(lambda _: self._creating.pop(name))
        await asyncio.shield(decided)
        return self.find(name), True

    async def seal(self, name: str) -> Stream:
        """Let the stream take no more events, for ever; repeating it is fine.

        Raises:
            StreamNotFoundError: there is none.
        """
        stream = self.find(name)
        if not stream.sealed:
            decided = self._container.decide(f.StreamSealed(stream.stream_id))
            self._close(stream)
            await decided
        return stream

    async def truncate(self, name: str, positions: Sequence[f.CutPosition]) -> Stream:
        """Move the start of the stream to a cut.

        Raises:
            StreamNotFoundError: there is none.
            CutInvalidError: the cut does not name every segment of the stream exactly once.
            OffsetBeyondEndError: a position lies beyond its segment.
        """
        stream = self.find(name)
        mine = {segment_id for segment_id, _, _ in stream.segments}
        named = [position.segment_id for position in positions]
        if len(named) != len(set(named)) or set(named) != mine:
            raise CutInvalidError(
                f"the cut names segments {sorted(named)}, the stream has {sorted(mine)}", subject=name
            )
        for segment_id, offset in positions:
            segment = self._container.segment(segment_id)
            if offset > segment.length:
                raise OffsetBeyondEndError(
                    f"the cut lies at {offset} in segment {segment_id}, which ends at {segment.length}",
                    subject=name,
                    start_offset=segment.start_offset,
                    length=segment.length,
                )
        if any(offset > self._container.segment(segment_id).start_offset for segment_id, offset in positions):
            await self._container.decide(f.StreamTruncated(stream.stream_id, list(positions)))
        return stream

    async def delete(self, name: str) -> bool:
        """Delete a sealed stream with everything in it; return False if there is none.

        Raises:
            StreamNotSealedError: it is not sealed.
        """
        stream = self._state.streams_by_name.get(name)
        if stream is None:
            return False
        if not stream.sealed:
            raise StreamNotSealedError("only a sealed stream can be deleted; seal it first", subject=name)
        await self._container.decide(f.StreamDeleted(stream.stream_id))
        return True

    def check_open(self, stream: Stream) -> None:
        """Raise StreamSealedError if the stream takes no more events."""
        if stream.sealed or stream.closing:
            raise StreamSealedError("the stream is sealed", subject=stream.name)

    def _close(self, stream: Stream) -> None:
        stream.closing = True
        for segment_id, _, _ in stream.segments:
            self._container.segment(segment_id).closing = True
