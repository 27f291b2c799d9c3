"""The console port: `/metrics` for Prometheus, `/health` for probes, `/` for people.

Numbers are taken from the statistics of the parts when they are asked for, so that counting costs the hot path nothing.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from .listener import HttpListener, Response

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
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        registry: CollectorRegistry,
        statistics: Callable[[], Statistics],
        health: Callable[[], str],
    ) -> None:
        self._statistics = statistics
        self._health = health
        registry.register(StatisticsCollector(statistics))
        self._registry = registry
        self._listener = HttpListener(host=host, port=port, respond=self._respond)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._listener.port

    def close(self) -> None:
        """Stop to listen. Blocks for a moment."""
        self._listener.close()

    def _respond(self, path: str, accept: str) -> Response:
        if path == "/metrics":
            encode, content_type = choose_encoder(accept)
            return Response(HTTPStatus.OK, content_type, encode(self._registry))
        if path == "/health":
            problem = self._health()
            status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
            return _json(status, {"healthy": not problem, "problem": problem})
        if path == "/":
            return _json(HTTPStatus.OK, {part: asdict(record) for part, record in self._statistics().items()})
        return _json(HTTPStatus.NOT_FOUND, {"error": "there are /, /health and /metrics"})


def _json(status: HTTPStatus, content: Any) -> Response:
    return Response(status, "application/json", json.dumps(content, indent=2, default=str).encode() + b"\n")
