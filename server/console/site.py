"""The console port: `/metrics` for Prometheus, `/health` for probes, `/` for people.

Numbers are taken from the statistics of the parts when they are asked for, so that counting costs the hot path nothing.
The HTTP server is the one of `prometheus_client`, in a thread of its own.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from socket import AF_INET6
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_S: Final = 5.0
"""How long a request may take to arrive."""

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


class _Server(ThreadingMixIn, WSGIServer):
    """One thread for each request: a client that sends slowly delays no other."""

    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("console request failed peer=%s", client_address)


class _Server6(_Server):
    address_family = AF_INET6


class _QuietHandler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name is that of the base class
        """Keep requests out of standard error."""
        logger.debug("console request %s", format % args)


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
        self._metrics_app = make_wsgi_app(registry)
        self._server: WSGIServer = make_server(
            host,
            port,
            self._application,
            server_class=_Server6 if ":" in host else _Server,
            handler_class=_QuietHandler,
        )
        self._thread = Thread(target=self._server.serve_forever, name="millrace-console", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._server.server_port

    def close(self) -> None:
        """Stop to listen. Blocks for a moment."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _application(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            result: Iterable[bytes] = self._metrics_app(environ, start_response)
            return result
        if path == "/health":
            problem = self._health()
            status = "503 Service Unavailable" if problem else "200 OK"
            return _json(start_response, status, {"healthy": not problem, "problem": problem})
        if path == "/":
            parts = {part: asdict(record) for part, record in self._statistics().items()}
            return _json(start_response, "200 OK", parts)
        return _json(start_response, "404 Not Found", {"error": "there are /, /health and /metrics"})


def _json(start_response: Callable[..., Any], status: str, content: Any) -> list[bytes]:
    body = json.dumps(content, indent=2, default=str).encode() + b"\n"
    start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
