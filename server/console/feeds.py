"""Requests below `/streams/`: feeds, within limits, for those who may read them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote

from millrace.model.cut import StreamCut, parse_choice
from millrace.model.errors import InvalidArgumentError, MillraceError
from millrace.model.names import checked_stream_name

from .access import Access
from .counters import FeedCounters
from .feed import Feed, FeedOverError, FeedRequest
from .feed_places import FeedMemory, FeedPlace, FeedPlaces
from .listener import HttpRequest, HttpResponse, StreamedResponse, Uptake
from .options import FeedOptions
from .requests import RETRY_AFTER_S, RefusedError, parameters_of, refusal_of
from .sse import CONTENT_TYPE

PATH: Final = "/streams/SCOPE/STREAM/events"
"""The path of a feed, for messages."""
PARAMETERS: Final = ("from", "key", "token")


class Feeds:
    """All feeds of a console.

    Args:
        address: address of the server on its own machine; called for each feed.
        access: checks who may read them.
        counters: counts the feeds.
    """

    def __init__(
        self, *, address: Callable[[], str], access: Access, options: FeedOptions, counters: FeedCounters
    ) -> None:
        self._address = address
        self._access = access
        self._options = options
        self._origins = options.origin_list
        self._counters = counters
        self._places = FeedPlaces(options)

    @asynccontextmanager
    async def respond(self, request: HttpRequest) -> AsyncIterator[HttpResponse | StreamedResponse]:
        """Answer a request for a path below `/streams/`. The feed ends when the context is left."""
        headers = self._sharing(request)
        if request.method == "OPTIONS":  # a browser's preflight request
            yield HttpResponse(HTTPStatus.NO_CONTENT, "text/plain", b"", {"Allow": "GET, OPTIONS", **headers})
            return
        async with AsyncExitStack() as stack:
            response: HttpResponse | StreamedResponse
            try:
                response = await self._begin(self._wanted(request), request.address, headers, stack)
            except RefusedError as refusal:
                self._counters.refused_total += 1
                response = refusal.response(headers)
            yield response

    async def _begin(
        self, wanted: FeedRequest, address: str, headers: Mapping[str, str], stack: AsyncExitStack
    ) -> HttpResponse | StreamedResponse:
        """Begin a feed for an address; it ends with the stack, or if another feed needs its place.

        Raises:
            RefusedError: the feed cannot begin.
        """
        task = asyncio.current_task()
        assert task is not None
        place = FeedPlace(address, Uptake(), task.cancel)
        if not self._places.open(place):
            problem = (
                f"{len(self._places)} feeds are open, and addresses share the limit of {self._options.count_max}"
                " (MILLRACE_FEED_COUNT_MAX)"
            )
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, problem, {"Retry-After": str(RETRY_AFTER_S)})
        self._counters.open += 1
        stack.callback(self._left, place)
        feed = Feed(
            wanted,
            address=self._address(),
            token=self._access.token,
            options=self._options,
            counters=self._counters,
            memory=FeedMemory(self._places, place),
        )
        await stack.enter_async_context(aclosing(feed))
        try:
            opening = await anext(feed)
        except FeedOverError:  # a browser that receives 204 does not reconnect
            return HttpResponse(HTTPStatus.NO_CONTENT, CONTENT_TYPE, b"", headers)
        except MillraceError as error:
            raise refusal_of(error) from error
        self._counters.opened_total += 1
        return StreamedResponse(
            content_type=CONTENT_TYPE,
            # Keeps proxies from buffering messages, or serving old ones.
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **headers},
            opening=opening,
            chunks=feed,
            patience_s=self._options.patience_s,
            uptake=place.uptake,
            rest=feed.rest,
        )

    def _left(self, place: FeedPlace) -> None:
        self._places.close(place)
        self._counters.open -= 1

    def _sharing(self, request: HttpRequest) -> dict[str, str]:
        """Return the headers that let a page of another origin read the answer, if it may."""
        origin = request.headers.get("origin", "")
        if not self._origins:
            return {}
        if "*" not in self._origins and origin not in self._origins:
            return {"Vary": "Origin"}
        return {
            "Access-Control-Allow-Origin": "*" if "*" in self._origins else origin,
            "Access-Control-Allow-Methods": "GET",
            "Access-Control-Allow-Headers": "Authorization, Last-Event-ID",
            "Vary": "Origin",
        }

    def _wanted(self, request: HttpRequest) -> FeedRequest:
        """Return the parameters of a feed, checked.

        Raises:
            RefusedError: they are invalid.
        """
        parts = [unquote(part) for part in request.path.split("/")]
        if len(parts) != 5 or parts[4] != "events":
            raise RefusedError(
                HTTPStatus.NOT_FOUND, f"{request.path} is not here; the events of a stream are at {PATH}"
            )
        if request.method != "GET":
            problem = f"{request.method} is not supported; use GET for a feed"
            raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, problem, {"Allow": "GET, OPTIONS"})
        try:
            parameters = parameters_of(request.query, names=PARAMETERS, subject="a feed")
            self._access.check_token(request, parameter=parameters.get("token", ""))
            stream = checked_stream_name("/".join(parts[2:4]))
            resumed = request.headers.get("last-event-id", "").strip()
            start = StreamCut.parse(resumed) if resumed else parse_choice(parameters.get("from", "tail"))
        except InvalidArgumentError as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, str(error)) from None
        return FeedRequest(stream=stream, start=start, key=parameters.get("key"), is_resumed=bool(resumed))
