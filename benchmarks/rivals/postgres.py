"""PostgreSQL with `synchronous_commit`: a row is an event, a commit is the acknowledgement, commits share syncs."""

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import LOOPBACK, find_program, free_port, running
from benchmarks.report import Row, SyncRate
from benchmarks.session import AbsentError, Session
from benchmarks.timing import Latencies, repeat

from .figures import EVENT_SIZE_BYTES, Rate, RivalFigures

_LIFETIME_S: Final = 90.0
_PROGRAM_TIMEOUT_S: Final = 30.0
_BATCH_ROWS: Final = 10_000
_VALUE: Final = b"x" * EVENT_SIZE_BYTES
# Where Debian keeps the programs that are not for everybody.
_FOLDERS: Final = "/usr/lib/postgresql/*/bin"
_READY_TIMEOUT_S: Final = 15.0
_READY_POLL_S: Final = 0.01
# It refuses to run as root.
_USER: Final = "postgres"


def postgres(session: Session) -> RivalFigures:
    """Measure PostgreSQL in a cluster of its own.

    Raises:
        AbsentError: the server or psycopg is not installed.
    """
    try:
        import psycopg
    except ImportError as error:
        raise AbsentError("pip install '.[rivals]'") from error
    with _running_cluster(session.directory) as (folder, port):
        address = f"host={folder} port={port} dbname=postgres user={_USER}"
        with _connected(psycopg, address) as connection:
            connection.execute("CREATE TABLE events (place bigint GENERATED ALWAYS AS IDENTITY, value bytea NOT NULL)")
            version = connection.execute("SHOW server_version").fetchone()
            latencies, syncs = _counted(connection, lambda: _one_at_a_time(session, connection))
            # The server may be faster than the bytes are encoded, or the other way round: its best is the better.
            blocks = _copy_blocks(session, connection)
            rows = _copy_rows(session, connection, version=psycopg.__version__)
            return RivalFigures(
                name=f"PostgreSQL {version[0].split()[0] if version else '?'}",
                acknowledges="synchronous_commit on: synced before the commit returns; prepared INSERT, psycopg",
                one_at_a_time=latencies,
                one_at_a_time_syncs=syncs,
                best=max(blocks, rows, key=lambda rate: rate.events_per_s),
                python_client=rows,
            )


def measure(session: Session) -> Iterator[Row]:
    """Yield the rows of PostgreSQL."""
    yield from session.once(postgres).rows()


@contextlib.contextmanager
def _running_cluster(directory: Path) -> Iterator[tuple[Path, int]]:
    initdb, server = find_program("initdb", _FOLDERS), find_program("postgres", _FOLDERS)
    if initdb is None or server is None:
        raise AbsentError("apt-get install postgresql")
    user = _USER if os.geteuid() == 0 else None
    port = free_port()
    with tempfile.TemporaryDirectory(dir=directory, prefix="postgres-") as name:
        folder = Path(name)
        if user is not None:
            _give(folder, user)
        data = folder / "data"
        made = subprocess.run(
            [initdb, "-D", str(data), "-U", _USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
            capture_output=True,
            text=True,
            timeout=_PROGRAM_TIMEOUT_S,
            cwd=folder,
            user=user,
            group=user,
            check=False,
        )
        if made.returncode != 0:
            raise RuntimeError(f"initdb failed: {made.stderr[-500:]}")
        settings = {
            "listen_addresses": LOOPBACK,
            "port": port,
            "unix_socket_directories": folder,
            "fsync": "on",
            "synchronous_commit": "on",
            "wal_sync_method": "fdatasync",
            # Room, so that no checkpoint falls into the measurement: the kindest setting that still syncs.
            "shared_buffers": "512MB",
            "max_wal_size": "8GB",
            "autovacuum": "off",
        }
        arguments = [server, "-D", str(data)]
        for key, value in settings.items():
            arguments += ["-c", f"{key}={value}"]
        # SIGQUIT is its immediate shutdown: no checkpoint, shared memory given back.
        with running(
            arguments,
            output=folder / "output",
            lifetime_s=_LIFETIME_S,
            directory=folder,
            user=user,
            stop_signal=signal.SIGQUIT,
        ) as child:
            child.wait_for_port(port, timeout_s=15.0)
            yield folder, port


def _connected(psycopg: Any, address: str) -> Any:
    """Connect as soon as the server accepts: it listens before it has its local socket and before it takes clients."""
    deadline_s = time.monotonic() + _READY_TIMEOUT_S
    while True:
        try:
            return psycopg.connect(address, autocommit=True)
        except psycopg.OperationalError:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(_READY_POLL_S)


def _give(folder: Path, user: str) -> None:
    try:
        shutil.chown(folder, user, user)
    except LookupError as error:
        raise AbsentError(f"the user {user!r}: apt-get install postgresql") from error


def _one_at_a_time(session: Session, connection: Any) -> Latencies:
    with connection.cursor() as cursor:

        def insert(_: int) -> None:
            cursor.execute("INSERT INTO events (value) VALUES (%b)", (_VALUE,), prepare=True)

        return repeat(insert, count=session.count(4_000), budget_s=session.seconds(1.5))


def _copy_blocks(session: Session, connection: Any) -> Rate:
    """COPY blocks of rows that were encoded beforehand: what the server takes when its client costs nothing."""
    # Binary COPY: signature, flags, extension size; per row the count of fields and each field after its size; -1.
    row = struct.pack(">hi", 1, len(_VALUE)) + _VALUE
    block = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0) + row * _BATCH_ROWS + struct.pack(">h", -1)

    def copy(_: int) -> None:
        with connection.cursor() as cursor, cursor.copy("COPY events (value) FROM STDIN (FORMAT binary)") as stream:
            stream.write(block)

    latencies, syncs = _counted(
        connection, lambda: repeat(copy, count=session.count(100), budget_s=session.seconds(3.0), warm_up=2)
    )
    return Rate(
        events_per_s=latencies.per_s * _BATCH_ROWS,
        syncs=syncs,
        conditions=f"binary COPY encoded beforehand, {_BATCH_ROWS:,} rows a commit, one connection; {latencies.tail()}",
    )


def _copy_rows(session: Session, connection: Any, *, version: str) -> Rate:
    """COPY row by row through psycopg, as a program with events in hand would."""

    def copy(_: int) -> None:
        with connection.cursor() as cursor, cursor.copy("COPY events (value) FROM STDIN (FORMAT binary)") as stream:
            stream.set_types(["bytea"])
            for _ in range(_BATCH_ROWS):
                stream.write_row((_VALUE,))

    latencies, syncs = _counted(
        connection, lambda: repeat(copy, count=session.count(60), budget_s=session.seconds(2.5), warm_up=1)
    )
    return Rate(
        events_per_s=latencies.per_s * _BATCH_ROWS,
        syncs=syncs,
        conditions=f"psycopg {version}, write_row of a binary COPY, {_BATCH_ROWS:,} rows a commit, one connection",
    )


def _counted(connection: Any, work: Callable[[], Latencies]) -> tuple[Latencies, SyncRate | None]:
    """Run `work` and take the syncs of the log that PostgreSQL itself counted meanwhile."""
    begin_s, before = time.monotonic(), _syncs(connection)
    latencies = work()
    elapsed_s = time.monotonic() - begin_s
    # Backends report their counts when idle, at most once a second, unless told to do so now.
    return latencies, SyncRate((_syncs(connection) - before) / elapsed_s, "pg_stat_wal")


def _syncs(connection: Any) -> int:
    connection.execute("SELECT pg_stat_force_next_flush()")
    row = connection.execute("SELECT wal_sync FROM pg_stat_wal").fetchone()
    return int(row[0])
