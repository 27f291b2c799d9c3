"""Cache of the open segments of streams, by which a client's transactions are routed.

What was fetched is used until the server says that it is outdated. It says so when a transaction begins, of which it
then stores nothing.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from millrace.client.streams import fetch_open_segments
from millrace.client.transport.channel import Channel
from millrace.client.write.routing import Router
from millrace.wire import messages as m

_KNOWN_COUNT_MAX: Final = 1000
"""Streams; that used longest ago is fetched again."""


class Route(NamedTuple):
    """The segments by which the events of a stream are routed in a transaction: those of one epoch."""

    stream_id: int
    epoch: int
    router: Router

    @classmethod
    def of(cls, stream: m.TransactionStream) -> "Route":
        """Return the route that a message tells."""
        return cls(
            stream.stream_id,
            stream.epoch,
            Router([each.segment_id for each in stream.ranges], [each.low for each in stream.ranges]),
        )


class KnownStreams:
    """The open segments of streams, by the names of these."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._routes: OrderedDict[str, Route] = OrderedDict()

    def route_of(self, name: str) -> Route | None:
        """Return the open segments of a stream; None if they have to be fetched."""
        route = self._routes.get(name)
        if route is not None:
            self._routes.move_to_end(name)
        return route

    async def fetch(self, name: str) -> Route:
        """Fetch the open segments of a stream. Cancelling is safe.

        Raises:
            StreamNotFoundError, StreamSealedError: nothing can be written to it.
            MillraceError: as `Channel.request`.
        """
        stream = await fetch_open_segments(self._channel, name)
        router = Router.of_stream(name, stream.segments)
        route = self._routes[name] = Route(stream.stream_id, stream.epoch, router)
        self._routes.move_to_end(name)
        if len(self._routes) > _KNOWN_COUNT_MAX:
            self._routes.popitem(last=False)
        return route
