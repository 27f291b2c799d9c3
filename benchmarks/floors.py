"""What the machine can do without Millrace: bare synced writes, bare loopback, bare page cache.

Every loop here is plain Python around one or two system calls, the cheapest loop that could still be called a storage
system. Files are zero-filled first and then written in place, from the front, as the log does it.
"""

import contextlib
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .flushes import counted_flushes
from .processes import LOOPBACK, NotReadyError, running
from .report import Quantity, Row, SyncRate, Unit
from .session import Session
from .timing import Latencies, repeat

MIB: Final = 1024 * 1024
_FILE_SIZE_BYTES: Final = 64 * MIB
_ECHO_START_TIMEOUT_S: Final = 10.0
_ECHO_LIFETIME_S: Final = 60.0
_NO_SYNCS: Final = SyncRate(0.0, "none made")


@dataclass(frozen=True, slots=True)
class SyncedWrites:
    """Writes of one size, each followed by a sync, to a zero-filled file."""

    size_bytes: int
    latencies: Latencies
    # Flushes that the device saw, to compare with rivals that do not count their own.
    device: SyncRate | None

    @property
    def bytes_per_s(self) -> Quantity:
        """Payload written and synced per second."""
        return Quantity(self.latencies.per_s * self.size_bytes, Unit.BYTES_PER_SECOND)


def synced_write_100(session: Session) -> SyncedWrites:
    """Measure `pwrite` + `fdatasync` of 100 B: what a lone durable append cannot beat."""
    return _synced_writes(session, size_bytes=100, count=3_000, budget_s=1.5)


def synced_write_4096(session: Session) -> SyncedWrites:
    """Measure `pwrite` + `fdatasync` of 4 KiB."""
    return _synced_writes(session, size_bytes=4096, count=3_000, budget_s=1.0)


def synced_write_mib(session: Session) -> SyncedWrites:
    """Measure `pwrite` + `fdatasync` of 1 MiB: the disk's sequential synced write rate."""
    return _synced_writes(session, size_bytes=MIB, count=2_000, budget_s=2.0)


def _synced_writes(session: Session, *, size_bytes: int, count: int, budget_s: float) -> SyncedWrites:
    with _zero_filled_file(session.directory) as descriptor:
        data = os.urandom(size_bytes)
        places = _FILE_SIZE_BYTES // size_bytes

        def write(index: int) -> None:
            os.pwrite(descriptor, data, index % places * size_bytes)
            os.fdatasync(descriptor)

        with counted_flushes(session.directory) as flushes:
            latencies = repeat(write, count=session.count(count), budget_s=session.seconds(budget_s))
    return SyncedWrites(size_bytes, latencies, flushes.rate)


def loopback_round_trip(session: Session) -> Latencies:
    """Measure 100 B there and back between two processes, over TCP on the loopback, blocking sockets."""
    message = os.urandom(100)
    with _peer(session.directory, "echo", len(message)) as connection:
        buffer = memoryview(bytearray(len(message)))

        def exchange(_: int) -> None:
            connection.sendall(message)
            received = 0
            while received < len(buffer):
                received += connection.recv_into(buffer[received:])

        return repeat(exchange, count=session.count(20_000), budget_s=session.seconds(1.0), warm_up=200)


def loopback_bulk(session: Session) -> Quantity:
    """Measure bytes per second from one process to another over TCP on the loopback, in pieces of 1 MiB."""
    with _peer(session.directory, "source", MIB) as connection:
        buffer = bytearray(MIB)
        received = 0
        begin_s = now_s = time.perf_counter()
        while now_s - begin_s < session.seconds(0.7):
            received += connection.recv_into(buffer)
            now_s = time.perf_counter()
        return Quantity(received / (now_s - begin_s), Unit.BYTES_PER_SECOND)


def page_cache_read(session: Session) -> Quantity:
    """Measure bytes per second of `preadv` in pieces of 1 MiB, from a file that is wholly in memory."""
    with _zero_filled_file(session.directory) as descriptor:
        buffer = bytearray(MIB)
        places = _FILE_SIZE_BYTES // MIB

        def read(index: int) -> None:
            os.preadv(descriptor, [buffer], index % places * MIB)

        latencies = repeat(read, count=session.count(20_000), budget_s=session.seconds(0.5), warm_up=places)
        return Quantity(latencies.per_s * MIB, Unit.BYTES_PER_SECOND)


def measure(session: Session) -> Iterator[Row]:
    """Yield one row for each floor."""
    for name, writes in (
        ("write + sync of 100 B", session.once(synced_write_100)),
        ("write + sync of 4 KiB", session.once(synced_write_4096)),
        ("write + sync of 1 MiB", session.once(synced_write_mib)),
    ):
        own = SyncRate(writes.latencies.per_s, "own count")
        conditions = writes.latencies.tail()
        if writes.device is not None:
            conditions += f"; the device counted {writes.device.per_s:,.0f} flushes/s"
        yield Row(name=f"{name}: p50", figure=writes.latencies.p50, syncs=own, conditions=conditions)
        yield Row(name=f"{name}: rate", figure=writes.bytes_per_s, syncs=own)
    round_trip = session.once(loopback_round_trip)
    yield Row(
        name="loopback round trip of 100 B: p50", figure=round_trip.p50, syncs=_NO_SYNCS, conditions=round_trip.tail()
    )
    yield Row(name="loopback, one way, 1 MiB pieces", figure=session.once(loopback_bulk), syncs=_NO_SYNCS)
    yield Row(name="read of 1 MiB pieces from the page cache", figure=session.once(page_cache_read), syncs=_NO_SYNCS)


@contextlib.contextmanager
def _zero_filled_file(directory: Path) -> Iterator[int]:
    # Unlinked at once, so that nothing is left however this ends.
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        zeroes = bytes(MIB)
        for _ in range(_FILE_SIZE_BYTES // MIB):
            file.write(zeroes)
        os.fsync(file.fileno())
        yield file.fileno()


@contextlib.contextmanager
def _peer(directory: Path, mode: str, size_bytes: int) -> Iterator[socket.socket]:
    """Start the other process of the bare loopback and connect to it."""
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        output = Path(folder) / "port"
        arguments = [sys.executable, "-m", "benchmarks.echo", mode, str(size_bytes)]
        with running(arguments, output=output, lifetime_s=_ECHO_LIFETIME_S) as child:
            deadline_s = time.monotonic() + _ECHO_START_TIMEOUT_S
            while not output.read_text().endswith("\n"):
                if time.monotonic() > deadline_s or child.process.poll() is not None:
                    raise NotReadyError(f"the loopback peer did not start: {child.last_output()}")
                time.sleep(0.01)
            with socket.create_connection((LOOPBACK, int(output.read_text())), timeout=5.0) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # A timeout makes every call poll first, which would be measured.
                connection.settimeout(None)
                yield connection
