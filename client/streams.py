"""Stream descriptions from the server as values of the model, for readers, writers and requests.

`timeout_s` is that of `Channel.request`.
"""

from dataclasses import replace

from millrace.client.transport.channel import Channel
from millrace.model.errors import InvalidArgumentError
from millrace.model.exclusive_writer import ExclusiveWriter
from millrace.model.key_range import KeyRange
from millrace.model.lineage import Epoch
from millrace.model.policy import StreamConfig
from millrace.model.stream import StreamInfo, StreamSegment
from millrace.wire import messages as m


def stream_info(message: m.StreamInfo) -> StreamInfo:
    """Convert a message into a description of a stream."""
    configuration = StreamConfig.from_json(message.configuration)
    return StreamInfo(
        name=message.name,
        stream_id=message.stream_id,
        created_us=message.created_us,
        epoch=message.epoch,
        sealed=bool(message.sealed),
        configuration=configuration,
        replaced_from=message.replaced_from,
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
            for segment in sorted(message.segments, key=lambda segment: (segment.epoch, segment.segment_id))
        ),
        exclusive_writer=ExclusiveWriter(
            message.exclusive_number, message.exclusive_epoch, message.exclusive_id, message.exclusive_since_us
        )
        if message.exclusive_number
        else None,
    )


async def fetch_description(
    channel: Channel, stream: str, *, replaced_from: int = 0, timeout_s: float | None = None
) -> m.StreamInfo:
    """Return the current description of a stream, in as many requests as it has pages. Cancelling is safe.

    Args:
        replaced_from: leave out the segments that were replaced in earlier epochs. The cost does not depend on them.

    Raises:
        StreamNotFoundError: the stream does not exist.
    """
    while True:
        first = page = await channel.request(m.GetStream(stream, replaced_from), timeout_s=timeout_s)
        segments = list(first.segments)
        while page.next_epoch:
            request = m.GetStream(stream, page.next_epoch, page_of=first.epoch, is_next=1)
            page = await channel.request(request, timeout_s=timeout_s)
            segments += page.segments
        # A stream that was truncated between two pages is fetched again: its pages do not fit each other.
        if (page.stream_id, page.replaced_count) == (first.stream_id, first.replaced_count):
            return first if page is first else replace(first, segments=segments, next_epoch=0)


async def fetch_open_segments(channel: Channel, stream: str, *, timeout_s: float | None = None) -> m.StreamInfo:
    """Return a stream with its open segments only: enough to write to it.

    Raises:
        StreamNotFoundError: the stream does not exist.
    """
    return await channel.request(m.GetStream(stream, m.NOT_REPLACED), timeout_s=timeout_s)


async def fetch_stream(
    channel: Channel, stream: str, *, replaced_from: int = 0, timeout_s: float | None = None
) -> StreamInfo:
    """Return the current description of a stream. Takes and raises the same as `fetch_description`."""
    return stream_info(await fetch_description(channel, stream, replaced_from=replaced_from, timeout_s=timeout_s))


async def fetch_history(channel: Channel, stream: str, *, timeout_s: float | None = None) -> list[Epoch]:
    """Return the epochs of a stream, oldest first.

    Raises:
        StreamNotFoundError: the stream does not exist.
    """
    epochs: list[Epoch] = []
    while True:
        first = epochs[-1].number + 1 if epochs else 0
        page = await channel.request(m.GetStreamHistory(stream, first), timeout_s=timeout_s)
        epochs += [epoch.epoch() for epoch in page.epochs]
        if not page.more:
            return epochs


async def fetch_byte_stream(channel: Channel, stream: str, *, timeout_s: float | None = None) -> StreamInfo:
    """Return a stream that can be used as a byte stream.

    Raises:
        StreamNotFoundError: the stream does not exist.
        InvalidArgumentError: it has, or had, more than one segment.
    """
    info = await fetch_stream(channel, stream, timeout_s=timeout_s)
    if info.epoch or len(info.segments) != 1:
        raise InvalidArgumentError(f"{stream} is no byte stream: it has more than one segment, or was scaled")
    return info
