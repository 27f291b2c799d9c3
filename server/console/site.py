"""The console port: a web page at `/`, its JSON API, feeds, metrics, and probes.

    /metrics                         for Prometheus
    /livez                           200 while the event loop of the server runs; otherwise restart the server
    /readyz, /health                 200 while everything can be served; else 503 with the reason
    /api/v1/...                      JSON (`api`)
    /streams/SCOPE/STREAM/events     feeds (`feeds`)

Numbers are taken from the statistics of the parts on request, so that counting costs the hot path nothing.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

from prometheus_client.exposition import choose_encoder

from millrace.server.host.metrics import Metrics
from millrace.server.host.proxy_protocol import NO_PROXIES, TrustedProxies

from .access import Access
from .api import PREFIX, Api
from .busy import Busy
from .feeds import PATH, Feeds
from .listener import HttpListener, HttpRequest, HttpResponse, StreamedResponse
from .metrics import Scrape, Statistics, registry_of
from .pages import load_pages
from .requests import RefusedError, json_response


class ConsoleSite:
    """The HTTP listener of the console. `close` ends it.

    Args:
        host, port: where to listen; port 0 lets the system choose.
        metrics: counters of the parts; `/metrics` shows them with the statistics.
        statistics: called for each request, in the thread of the console: it must only read.
        health: why the server is not healthy; empty if it is.
        busy: the streams and cursors with metrics of their own; called like `statistics`.
        measure: updates `busy`; awaited in the loop of the console.
        is_live: whether the event loop of the server runs; may take a while.
        access: checks who may ask.
        proxies: the proxies that report the addresses of their clients.
        feeds: answers requests below `/streams/`.
        api: answers requests below `/api/v1/`.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        metrics: Metrics,
        statistics: Callable[[], Statistics],
        health: Callable[[], str],
        busy: Callable[[], Busy],
        measure: Callable[[], Awaitable[None]],
        is_live: Callable[[], Awaitable[bool]],
        access: Access,
        feeds: Feeds,
        api: Api,
        proxies: TrustedProxies = NO_PROXIES,
    ) -> None:
        self._health = health
        self._is_live = is_live
        self._access = access
        self._feeds = feeds
        self._measure = measure
        self._api = api
        self._pages = load_pages()
        registry = registry_of(metrics, statistics=statistics, health=health)
        # By whether streams and cursors are named.
        self._scrapes = {is_named: Scrape(registry, busy, is_named=is_named) for is_named in (False, True)}
        self._listener = HttpListener(host=host, port=port, respond=self._respond, proxies=proxies)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._listener.port

    def end_feeds(self) -> None:
        """End all feeds, and reject new ones. Blocks for a moment."""
        self._listener.end_streams()

    def close(self) -> None:
        """Stop to listen. Blocks for a moment."""
        self._listener.close()

    @asynccontextmanager
    async def _respond(self, request: HttpRequest) -> AsyncIterator[HttpResponse | StreamedResponse]:
        try:
            self._access.check_name(request)
        except RefusedError as refusal:
            yield refusal.response({})
            return
        if request.path.startswith("/streams/"):
            async with self._feeds.respond(request) as response:
                yield response
        elif request.path.startswith(PREFIX):
            yield await self._api.answer(request)
        else:
            if request.path == "/metrics" and request.method == "GET":
                await self._measure()
            yield await self._page(request)

    async def _page(self, request: HttpRequest) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            problem = f"{request.method} is not supported, only GET and HEAD"
            return json_response(HTTPStatus.METHOD_NOT_ALLOWED, {"error": problem}, {"Allow": "GET, HEAD"})
        path = request.path
        if page := self._pages.get(path):
            return page
        if path == "/metrics":
            encode, content_type = choose_encoder(request.headers.get("accept", ""))
            try:
                scrape = self._scrapes[self._access.knows_names(request)]
            except RefusedError as refusal:
                return refusal.response({})
            return HttpResponse(HTTPStatus.OK, content_type, encode(scrape))
        if path in ("/health", "/readyz"):
            problem = self._health()
            status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
            return json_response(status, {"healthy": not problem, "problem": problem})
        if path == "/livez":
            live = await self._is_live()
            return json_response(HTTPStatus.OK if live else HTTPStatus.SERVICE_UNAVAILABLE, {"live": live})
        known = f"available are /, /health, /readyz, /livez, /metrics, {PREFIX} and {PATH}"
        return json_response(HTTPStatus.NOT_FOUND, {"error": known})
