"""Requests about writers, exclusive ones too."""

from collections.abc import Sequence

from millrace.model.limits import SEGMENTS_PER_STREAM_MAX
from millrace.server.container.container import SegmentContainer
from millrace.server.errors import InvalidArgumentError
from millrace.server.kinds.streams.commands import StreamCommands
from millrace.wire import messages as m

from .commands import WriterCommands
from .exclusive import ExclusiveCommands


class WriterRequests:
    """Answers requests about writers."""

    def __init__(self, container: SegmentContainer, writers: WriterCommands, streams: StreamCommands) -> None:
        self._container = container
        self._writers = writers
        self._exclusive = ExclusiveCommands(container, streams=streams, writers=writers)

    async def open_writer(self, message: m.OpenWriter) -> m.WriterOpened:
        self._check_segments(message.segment_ids)
        if message.exclusive:
            return await self._exclusive.open(
                message.writer_id,
                message.segment_ids,
                start_over=bool(message.start_over),
                stream_id=message.stream_id,
                nonce=message.nonce,
                expected=message.expected,
            )
        if message.expected:
            raise InvalidArgumentError("only the opening of an exclusive writer expects the stream to end somewhere")
        return await self._writers.open(
            message.writer_id,
            message.segment_ids,
            start_over=bool(message.start_over),
            stream_id=message.stream_id,
            nonce=message.nonce,
        )

    async def get_writer(self, message: m.GetWriter) -> m.WriterOpened:
        await self._container.in_flight.settled()  # so what was sent before, and is not told here, is never stored
        self._check_segments(message.segment_ids)
        writer = self._writers.find(message.writer_id)
        self._writers.check_epoch(writer, message.writer_epoch)
        return self._writers.describe(writer, message.segment_ids, stream_id=message.stream_id)

    async def tell_stored(self, message: m.TellStored) -> m.Done:
        changed = await self._writers.tell_stored(
            message.writer_number, message.writer_epoch, stream_id=message.stream_id, stored_below=message.stored_below
        )
        return m.Done(int(changed))

    async def reset_sequences(self, message: m.ResetSequences) -> m.Done:
        changed = await self._writers.reset_sequences(
            message.writer_id, stream_id=message.stream_id, stored_through=message.stored_through
        )
        return m.Done(int(changed))

    async def release_stream(self, message: m.ReleaseStream) -> m.Done:
        changed = await self._exclusive.release(
            message.stream_id, writer_number=message.writer_number, writer_epoch=message.writer_epoch
        )
        return m.Done(int(changed))

    def _check_segments(self, segment_ids: Sequence[int]) -> None:
        """Raise if a segment does not exist, or if there are more than one reply can hold."""
        if len(segment_ids) > SEGMENTS_PER_STREAM_MAX:
            raise InvalidArgumentError(f"a request names at most {SEGMENTS_PER_STREAM_MAX} segments")
        for segment_id in segment_ids:
            self._container.segment(segment_id)
