"""The console's JSON API, below `/api/v1/`: the current server, streams and transactions. Read-only.

    /api/v1/server                              health with its reason, and all figures
    /api/v1/streams                             names with sizes: prefix, contains, tag, after, limit
    /api/v1/streams/SCOPE/STREAM                policies, open segments, counts
    /api/v1/streams/SCOPE/STREAM/segments       all segments over time, and why they were split and merged
    /api/v1/streams/SCOPE/STREAM/cuts           cursors with their lag, and bookmarks
    /api/v1/streams/SCOPE/STREAM/explain        as `millrace stream explain --json`
    /api/v1/streams/SCOPE/STREAM/events         some events: from, key, limit
    /api/v1/transactions                        open and prepared transactions: after, limit

Each request opens a client of the server, as a feed does, for its duration: it uses the event loop no more than any
other client. Only `server` does not use the data port, and so answers when the data port does not.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import asdict
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

from millrace.client.admin.bookmarks import SavedCut
from millrace.client.client import Client, connect
from millrace.client.errors import StreamNotFoundError
from millrace.client.options import ClientOptions
from millrace.model.cut import TAIL, parse_choice
from millrace.model.errors import MillraceError, RequestError
from millrace.model.names import checked_stream_name

from .access import Access
from .event_page import EVENTS_COUNT_MAX, event_page
from .listener import HttpRequest, HttpResponse
from .name_search import search_names
from .requests import RETRY_AFTER_S, RefusedError, json_response, number_of, parameters_of, refusal_of
from .stream_facts import description, saved_cuts, segments_over_time, summary, transaction

PREFIX: Final = "/api/v1/"
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of each answer: browsers show event content only as data, and in no other page."""
REQUESTS_COUNT_MAX: Final = 16
"""Concurrent requests, not counting `server`; further ones are rejected with 503."""
EVENT_REQUESTS_COUNT_MAX: Final = 4
"""Concurrent requests for events, a part of these: each fetches 64 KiB ahead for each open segment of its stream."""
ANSWER_S: Final = 8.0
"""Less than the listener allows for a whole answer."""
REQUEST_TIMEOUT_S: Final = 5.0
CONNECT_TIMEOUT_S: Final = 2.0
"""Over the loopback. A stopping server waits at most this long for requests that are connecting."""
STREAMS_COUNT_MAX: Final = 200
SCANNED_COUNT_MAX: Final = 10_000
"""The most names that one search examines."""
TRANSACTIONS_COUNT_MAX: Final = 500
CUTS_COUNT_MAX: Final = 200
COUNTED_CURSORS_MAX: Final = 20
COUNTED_SEGMENTS_MAX: Final = 64
"""The events that cursors have not read are counted of so many cursors, in streams of so many open segments."""
COUNTING_S: Final = 1.0
NUMBER_MAX: Final = (1 << 63) - 1

Parameters = Mapping[str, str]


class Api:
    """Answers requests below `/api/v1/`.

    Args:
        address: address of the server on its own machine; called for each request.
        access: checks who may ask.
        statistics: frozen records by the name of their part, and
        health: why the server is not healthy, empty if it is; both only read, and may be called from any thread.
    """

    def __init__(
        self,
        *,
        address: Callable[[], str],
        access: Access,
        statistics: Callable[[], Mapping[str, Any]],
        health: Callable[[], str],
    ) -> None:
        self._address = address
        self._access = access
        self._statistics = statistics
        self._health = health
        # Requests in progress, by whether they are for events.
        self._answering = {False: 0, True: 0}

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer a request. Cancelling is safe."""
        try:
            return json_response(HTTPStatus.OK, await self._content(request), HEADERS)
        except RefusedError as refusal:
            return refusal.response(HEADERS)
        except MillraceError as error:
            return refusal_of(error).response(HEADERS)

    async def _content(self, request: HttpRequest) -> dict[str, Any]:
        if request.method not in ("GET", "HEAD"):
            problem = f"{request.method} is not supported, only GET and HEAD: the console is read-only"
            raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, problem, {"Allow": "GET, HEAD"})
        self._access.check_token(request)
        parts = [unquote(part) for part in request.path.removeprefix(PREFIX).split("/")]
        kind = "/".join([parts[0], *("*" for _ in parts[1:3]), *parts[3:]])
        if kind == "server":
            parameters_of(request.query, names=(), subject=kind)
            return self._server()
        if kind not in VIEWS:
            known = ", ".join(f"{PREFIX}{each.replace('*/*', 'SCOPE/STREAM')}" for each in ("server", *VIEWS))
            raise RefusedError(HTTPStatus.NOT_FOUND, f"{request.path[:200]} does not exist; available are {known}")
        names, view = VIEWS[kind]
        parameters = parameters_of(request.query, names=names, subject=f"{PREFIX}{kind}")
        stream = checked_stream_name("/".join(parts[1:3])) if len(parts) > 1 else ""
        is_for_events = view is _events
        if sum(self._answering.values()) >= REQUESTS_COUNT_MAX:
            raise _busy(f"{REQUESTS_COUNT_MAX} requests are in progress, which is the limit")
        if is_for_events and self._answering[True] >= EVENT_REQUESTS_COUNT_MAX:
            raise _busy(f"{EVENT_REQUESTS_COUNT_MAX} requests for events are in progress, which is the limit")
        self._answering[is_for_events] += 1
        try:
            return await self._ask(lambda client: view(client, stream, parameters))
        finally:
            self._answering[is_for_events] -= 1

    async def _ask(self, view: Callable[[Client], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Run a view with a client of the server.

        Raises:
            MillraceError: as the client.
            RefusedError: the deadline has passed.
        """
        options = ClientOptions(
            token=self._access.token,
            client_name="millrace-console",
            connect_timeout_s=CONNECT_TIMEOUT_S,
            request_timeout_s=REQUEST_TIMEOUT_S,
            outage_timeout_s=REQUEST_TIMEOUT_S,
        )
        try:
            async with asyncio.timeout(ANSWER_S) as limit, connect(self._address(), options=options) as client:
                return await view(client)
        except TimeoutError:
            if not limit.expired():
                raise
            raise _busy(f"the server took longer than {ANSWER_S:g} s") from None

    def _server(self) -> dict[str, Any]:
        problem = self._health()
        return {
            "now_us": _now_us(),
            "healthy": not problem,
            "problem": problem,
            "statistics": {part: asdict(record) for part, record in self._statistics().items()},
        }


def _busy(problem: str) -> RefusedError:
    return RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, problem, {"Retry-After": str(RETRY_AFTER_S)})


async def _streams(client: Client, _stream: str, parameters: Parameters) -> dict[str, Any]:
    count_max = number_of(parameters, "limit", default=50, low=1, high=STREAMS_COUNT_MAX)
    prefix, tag, after = (parameters.get(name, "") for name in ("prefix", "tag", "after"))
    async with aclosing(client.list_streams(prefix, tag=tag, after=after)) as names:
        found, resume_after = await search_names(
            names,
            contains=parameters.get("contains", ""),
            count_max=count_max,
            scanned_count_max=SCANNED_COUNT_MAX,
        )
    rows = await asyncio.gather(*(_row(client, name) for name in found))
    return {"now_us": _now_us(), "streams": [row for row in rows if row is not None], "resume_after": resume_after}


async def _row(client: Client, stream: str) -> dict[str, Any] | None:
    """Return a list entry for a stream, None if it was deleted meanwhile."""
    try:
        return summary(await client.stream_info(stream))
    except StreamNotFoundError:
        return None


async def _stream(client: Client, stream: str, _parameters: Parameters) -> dict[str, Any]:
    return description(await client.stream_info(stream), now_us=_now_us())


async def _segments(client: Client, stream: str, _parameters: Parameters) -> dict[str, Any]:
    info = await client.stream_info(stream)
    return segments_over_time(info, await client.stream_history(stream), now_us=_now_us())


async def _cuts(client: Client, stream: str, _parameters: Parameters) -> dict[str, Any]:
    cursors = await client.cursors(stream).list()
    bookmarks = await client.bookmarks(stream).list()
    lags = (await client.explain_stream(stream))["cursors"] if cursors else []
    content = saved_cuts(
        cursors[:CUTS_COUNT_MAX],
        bookmarks[:CUTS_COUNT_MAX],
        lags=lags,
        unread_events=await _unread_events(client, stream, cursors),
    )
    more = max(0, len(cursors) - CUTS_COUNT_MAX) + max(0, len(bookmarks) - CUTS_COUNT_MAX)
    return {"stream": stream, "now_us": _now_us(), **content, "omitted_count": more}


async def _unread_events(client: Client, stream: str, cursors: list[SavedCut]) -> dict[str, int]:
    """Return the number of events after each cursor, by name, for as many as can be counted in a moment."""
    counted: dict[str, int] = {}
    try:
        async with asyncio.timeout(COUNTING_S) as limit:
            for cursor in cursors[:COUNTED_CURSORS_MAX]:
                if len(cursor.cut.places) > COUNTED_SEGMENTS_MAX:
                    continue
                try:
                    counted[cursor.name] = (await client.distance(cursor.cut, TAIL)).events
                except RequestError:
                    continue  # it was truncated, or set to another place meanwhile
    except TimeoutError:
        if not limit.expired():
            raise
    return counted


async def _explain(client: Client, stream: str, _parameters: Parameters) -> dict[str, Any]:
    return await client.explain_stream(stream)


async def _events(client: Client, stream: str, parameters: Parameters) -> dict[str, Any]:
    count_max = number_of(parameters, "limit", default=50, low=1, high=EVENTS_COUNT_MAX)
    start = parse_choice(parameters.get("from", "head"))
    return await event_page(client, stream, start=start, key=parameters.get("key"), count_max=count_max)


async def _transactions(client: Client, _stream: str, parameters: Parameters) -> dict[str, Any]:
    count_max = number_of(parameters, "limit", default=100, low=1, high=TRANSACTIONS_COUNT_MAX)
    after = number_of(parameters, "after", default=0, low=0, high=NUMBER_MAX)
    rows: list[dict[str, Any]] = []
    async with aclosing(client.list_transactions(after=after)) as listed:
        async for each in listed:
            if len(rows) == count_max:
                return {"now_us": _now_us(), "transactions": rows, "resume_after": rows[-1]["number"]}
            rows.append(transaction(each))
    return {"now_us": _now_us(), "transactions": rows, "resume_after": None}


def _now_us() -> int:
    return time.time_ns() // 1000


View = Callable[[Client, str, Parameters], Awaitable[dict[str, Any]]]

VIEWS: Final[Mapping[str, tuple[tuple[str, ...], View]]] = {
    "streams": (("prefix", "contains", "tag", "after", "limit"), _streams),
    "streams/*/*": ((), _stream),
    "streams/*/*/segments": ((), _segments),
    "streams/*/*/cuts": ((), _cuts),
    "streams/*/*/explain": ((), _explain),
    "streams/*/*/events": (("from", "key", "limit"), _events),
    "transactions": (("after", "limit"), _transactions),
}
"""For each path, its parameters and its handler."""
