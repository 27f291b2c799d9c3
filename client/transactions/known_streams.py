"""Which segments of streams are open, as far as a client knows: what its transactions are routed by.

What was fetched is used until the server says that it is outdated. It says so when a transaction begins, of which it
then stores nothing.
"""

from collections import OrderedDict
from typing import Final

from millrace.client.transport.channel import Channel
from millrace.client.write.routing import Router
from millrace.wire import messages as m

_KNOWN_COUNT_MAX: Final = 1000
"""Streams; that used longest ago is fetched again."""


class KnownStreams:
    """The open segments of streams, by the names of these."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._routes: OrderedDict[str, m.TransactionStream] = OrderedDict()

    def route_of(self, name: str) -> m.TransactionStream | None:
        """Return the open segments of a stream; None if they have to be fetched."""
        route = self._routes.get(name)
        if route is not None:
            self._routes.move_to_end(name)
        return route

    async def fetch(self, name: str) -> m.TransactionStream:
        """Fetch the open segments of a stream. Cancelling is safe.

        Raises:
            StreamNotFoundError, StreamSealedError: nothing can be written to it.
            MillraceError: as `Channel.request`.
        """
        stream = await self._channel.request(m.GetStream(name))
        Router.of_stream(name, stream.segments)  # raises if they are none that can be routed by
        ranges = [
            m.SegmentRangeRecord(segment.segment_id, segment.low, segment.last)
            for segment in sorted(stream.segments, key=lambda segment: segment.low)
            if not segment.sealed
        ]
        route = self._routes[name] = m.TransactionStream(stream.stream_id, stream.epoch, ranges)
        self._routes.move_to_end(name)
        if len(self._routes) > _KNOWN_COUNT_MAX:
            self._routes.popitem(last=False)
        return route
