"""What the server says of streams, as values of the model: for readers, writers and requests.

`timeout_s` is that of `Channel.request`.
"""

from millrace.client.transport.channel import Channel
from millrace.model.errors import InvalidArgumentError
from millrace.model.exclusive_writer import ExclusiveWriter
from millrace.model.key_range import KeyRange
from millrace.model.lineage import Epoch
from millrace.model.policy import StreamConfig
from millrace.model.stream import StreamInfo, StreamSegment
from millrace.wire import messages as m


def stream_info(message: m.StreamInfo) -> StreamInfo:
    """Return what a message says of a stream."""
    configuration = StreamConfig.from_json(message.configuration)
    return StreamInfo(
        name=message.name,
        stream_id=message.stream_id,
        created_us=message.created_us,
        epoch=message.epoch,
        sealed=bool(message.sealed),
        configuration=configuration,
        segments=tuple(
            StreamSegment(
                segment_id=segment.segment_id,
                key_range=KeyRange.inclusive(segment.low, segment.last),
                epoch=segment.epoch,
                sealed_epoch=segment.sealed_epoch,
                start_offset=segment.start_offset,
                start_index=segment.start_index,
                length=segment.length,
                event_count=segment.event_count,
                sealed=bool(segment.sealed),
            )
            for segment in message.segments
        ),
        exclusive_writer=ExclusiveWriter(
            message.exclusive_number, message.exclusive_epoch, message.exclusive_id, message.exclusive_since_us
        )
        if message.exclusive_number
        else None,
    )


async def fetch_stream(channel: Channel, stream: str, *, timeout_s: float | None = None) -> StreamInfo:
    """Return what a stream is now.

    Raises:
        StreamNotFoundError: there is none.
    """
    return stream_info(await channel.request(m.GetStream(stream), timeout_s=timeout_s))


async def fetch_history(channel: Channel, stream: str, *, timeout_s: float | None = None) -> list[Epoch]:
    """Return the epochs of a stream, the first one first.

    Raises:
        StreamNotFoundError: there is none.
    """
    history = await channel.request(m.GetStreamHistory(stream), timeout_s=timeout_s)
    return [epoch.epoch() for epoch in history.epochs]


async def fetch_byte_stream(channel: Channel, stream: str, *, timeout_s: float | None = None) -> StreamInfo:
    """Return a stream that can be used as a byte stream.

    Raises:
        StreamNotFoundError: there is none.
        InvalidArgumentError: it has, or had, more than one segment.
    """
    info = await fetch_stream(channel, stream, timeout_s=timeout_s)
    if info.epoch or len(info.segments) != 1:
        raise InvalidArgumentError(f"{stream} is no byte stream: it has more than one segment, or was scaled")
    return info
