"""RabbitMQ streams: confirmed when written to the page cache, never synced; here for the speed of its client."""

import asyncio
import contextlib
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.flushes import counted_flushes
from benchmarks.processes import LOOPBACK, find_program, free_port, running
from benchmarks.report import Row
from benchmarks.session import AbsentError, Session
from benchmarks.timing import Latencies

from .figures import EVENT_SIZE_BYTES, Rate, RivalFigures

_LIFETIME_S: Final = 90.0
_START_TIMEOUT_S: Final = 45.0
_CONFIRM_TIMEOUT_S: Final = 20.0
_BATCH_EVENTS: Final = 1_000
_BATCHES_OUTSTANDING_MAX: Final = 20
_ACCOUNT: Final = "guest"  # exists in every new node, for the loopback only
_VALUE: Final = b"x" * EVENT_SIZE_BYTES
# The programs on PATH change to the user `rabbitmq` and its folders; these run as we are, where we say.
_FOLDERS: Final = "/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin"


def rabbitmq_streams(session: Session) -> RivalFigures:
    """Measure RabbitMQ as a node of its own in a temporary folder.

    Raises:
        AbsentError: RabbitMQ (with Erlang) or rstream is not installed.
    """
    try:
        import rstream
    except ImportError as error:
        raise AbsentError("pip install '.[rivals]'") from error
    with _running_node(session.directory) as (version, port, folder):
        return asyncio.run(_measure(session, rstream, port, folder, version=version))


def measure(session: Session) -> Iterator[Row]:
    """Yield the rows of RabbitMQ."""
    yield from session.once(rabbitmq_streams).rows()


async def _measure(session: Session, rstream: Any, port: int, folder: Path, *, version: str) -> RivalFigures:
    async with rstream.Producer(LOOPBACK, port, username=_ACCOUNT, password=_ACCOUNT) as producer:
        await producer.create_stream("one")
        with counted_flushes(folder) as flushes:
            latencies = await _one_at_a_time(session, producer)
        await producer.create_stream("many")
        rate = await _batches(session, producer, folder, version=rstream.__version__)
    return RivalFigures(
        name=f"RabbitMQ {version} streams",
        acknowledges="never synced: confirmed from the page cache; rstream send_wait",
        one_at_a_time=latencies,
        one_at_a_time_syncs=flushes.rate,
        # Debian packages no other driver of the stream protocol; its Java benchmark is a download of its own.
        best=rate,
        python_client=rate,
    )


async def _one_at_a_time(session: Session, producer: Any) -> Latencies:
    samples_s: list[float] = []
    begin_s = time.perf_counter()
    for index in range(session.count(2_000)):
        sent_s = time.perf_counter()
        await producer.send_wait("one", _VALUE)
        now_s = time.perf_counter()
        if index >= 20:
            samples_s.append(now_s - sent_s)
        if now_s - begin_s > session.seconds(1.5):
            break
    return Latencies.of(samples_s, elapsed_s=sum(samples_s))


async def _batches(session: Session, producer: Any, folder: Path, *, version: str) -> Rate:
    """Send batches through rstream, a bounded number of them unconfirmed; count confirmed events."""
    batches = session.count(400)
    confirmed = 0
    room = asyncio.Semaphore(_BATCHES_OUTSTANDING_MAX)
    done = asyncio.Event()

    def on_confirm(status: Any) -> None:
        nonlocal confirmed
        assert status.is_confirmed, status
        confirmed += 1
        if confirmed % _BATCH_EVENTS == 0:
            room.release()
        if confirmed == batches * _BATCH_EVENTS:
            done.set()

    with counted_flushes(folder) as flushes:
        begin_s = time.perf_counter()
        for _ in range(batches):
            await asyncio.wait_for(room.acquire(), _CONFIRM_TIMEOUT_S)
            await producer.send_batch("many", [_VALUE] * _BATCH_EVENTS, on_publish_confirm=on_confirm)
        await asyncio.wait_for(done.wait(), _CONFIRM_TIMEOUT_S)
        elapsed_s = time.perf_counter() - begin_s
    return Rate(
        events_per_s=confirmed / elapsed_s,
        syncs=flushes.rate,
        conditions=f"rstream {version}, one client, send_batch of {_BATCH_EVENTS:,}, "
        f"at most {_BATCHES_OUTSTANDING_MAX} unconfirmed",
    )


@contextlib.contextmanager
def _running_node(directory: Path) -> Iterator[tuple[str, int, Path]]:
    server, registry = _find_server(), find_program("epmd")
    if server is None or registry is None:
        raise AbsentError("apt-get install rabbitmq-server")
    port, unused_port, node_port, registry_port = (free_port() for _ in range(4))
    with tempfile.TemporaryDirectory(dir=directory, prefix="rabbitmq-") as name:
        folder = Path(name)
        (folder / "enabled_plugins").write_text("[rabbitmq_stream].\n")
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = {LOOPBACK}:{unused_port}\n"
            f"stream.listeners.tcp.1 = {LOOPBACK}:{port}\n"
            # The client connects to what the node advertises.
            f"stream.advertised_host = {LOOPBACK}\n"
            f"stream.advertised_port = {port}\n"
        )
        environment = {
            "HOME": name,
            "ERL_EPMD_PORT": str(registry_port),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_DIST_PORT": str(node_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            # The script then becomes the node itself, instead of a shell that waits for it.
            "RUNNING_UNDER_SYSTEMD": "true",
        }
        # Left to itself, the node would start Erlang's registry as a daemon that outlives it. Both keep nothing worth
        # an orderly end.
        with (
            running(
                [registry],
                output=folder / "registry",
                lifetime_s=_LIFETIME_S,
                environment=environment,
                stop_signal=signal.SIGKILL,
            ) as registry_child,
            running(
                [server],
                output=folder / "output",
                lifetime_s=_LIFETIME_S,
                environment=environment,
                stop_signal=signal.SIGKILL,
            ) as child,
        ):
            registry_child.wait_for_port(registry_port, timeout_s=5.0)
            child.wait_for_port(port, timeout_s=_START_TIMEOUT_S)
            yield Path(server).parent.parent.name.rpartition("-")[2], port, folder


def _find_server() -> str | None:
    candidates = sorted(Path("/").glob(f"{_FOLDERS.lstrip('/')}/rabbitmq-server"))
    return str(candidates[-1]) if candidates else None
