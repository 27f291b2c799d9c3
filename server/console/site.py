"""The console port: `/metrics` for Prometheus, `/health` for probes, `/` for people, feeds below `/streams/`.

Numbers are taken from the statistics of the parts when they are asked for, so that counting costs the hot path nothing.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from .feeds import PATH, Feeds
from .listener import HttpListener, Request, Response, StreamedResponse

Statistics = Mapping[str, Any]
"""Frozen records by the name of their part."""


class StatisticsCollector(Collector):
    """Turns the statistics of the parts into metrics when Prometheus asks."""

    def __init__(self, statistics: Callable[[], Statistics]) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        """Yield one metric for each number: `millrace_<part>_<field>`."""
        for part, record in self._statistics().items():
            for name, value in asdict(record).items():
                if isinstance(value, bool | int | float):
                    family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                    yield family(f"millrace_{part}_{name}", f"{name} of the {part}", value=float(value))


class ConsoleSite:
    """The HTTP listener. `close` ends it.

    Args:
        host, port: where to listen; port 0 lets the system choose.
        registry: what `/metrics` shows; the statistics are added to it.
        statistics: called for each request, in the thread of the console: it must only read.
        health: why the server is not healthy, for `/health`; empty if it is.
        feeds: what answers below `/streams/`.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        registry: CollectorRegistry,
        statistics: Callable[[], Statistics],
        health: Callable[[], str],
        feeds: Feeds,
    ) -> None:
        self._statistics = statistics
        self._health = health
        self._feeds = feeds
        registry.register(StatisticsCollector(statistics))
        self._registry = registry
        self._listener = HttpListener(host=host, port=port, respond=self._respond)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._listener.port

    def end_feeds(self) -> None:
        """End all feeds, and let none begin. Blocks for a moment."""
        self._listener.end_streams()

    def close(self) -> None:
        """Stop to listen. Blocks for a moment."""
        self._listener.close()

    @asynccontextmanager
    async def _respond(self, request: Request) -> AsyncIterator[Response | StreamedResponse]:
        if request.path.startswith("/streams/"):
            async with self._feeds.respond(request) as response:
                yield response
        else:
            yield self._page(request)

    def _page(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            problem = f"{request.method} is not answered here, only GET and HEAD"
            return _json(HTTPStatus.METHOD_NOT_ALLOWED, {"error": problem}, {"Allow": "GET, HEAD"})
        path = request.path
        if path == "/metrics":
            encode, content_type = choose_encoder(request.headers.get("accept", ""))
            return Response(HTTPStatus.OK, content_type, encode(self._registry))
        if path == "/health":
            problem = self._health()
            status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
            return _json(status, {"healthy": not problem, "problem": problem})
        if path == "/":
            return _json(HTTPStatus.OK, {part: asdict(record) for part, record in self._statistics().items()})
        return _json(HTTPStatus.NOT_FOUND, {"error": f"there are /, /health, /metrics and {PATH}"})


def _json(status: HTTPStatus, content: Any, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps(content, indent=2, default=str).encode() + b"\n"
    return Response(status, "application/json", body, headers or {})
