"""From the start of a killed server to its serving, with a gigabyte of log to read again."""

import itertools
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .appender import AppenderOptions, AppenderResult
from .child import measured
from .floors import MIB
from .report import Bound, Quantity, Row, SyncRate, Target, Unit
from .server import MillraceServer, millrace_server
from .session import Session

_LOG_BYTES: Final = 1e9
_LIMIT_S: Final = 5.0
_FILL_ROUND_S: Final = 0.5
_ROUNDS_MAX: Final = 60
# Tier 2 takes nothing, as if it were away: so all of the log is needed, and read again. By default the log would be
# recycled long before, and the server would hold less in memory than it has to here.
_SETTINGS: Final = {
    "MILLRACE_WAL_FILES_MAX": "128",
    "MILLRACE_CONTAINER_FLUSH_AGE_S": "100000",
    "MILLRACE_CONTAINER_FLUSH_SIZE_BYTES": "4000000000",
    "MILLRACE_CONTAINER_CHUNK_SIZE_BYTES_MAX": "4000000000",
    "MILLRACE_CONTAINER_TAIL_SIZE_BYTES_HIGH": "8000000000",
    "MILLRACE_CONTAINER_TAIL_SIZE_BYTES_LOW": "8000000000",
}
# Of large appends, and of very many.
_LOADS: Final = ((1, 4, MIB), (16, 256, 100))


def measure(session: Session) -> Iterator[Row]:
    """Yield the time of a start after a kill, for a log of large appends and one of small ones."""
    log_bytes = _LOG_BYTES * session.effort
    for connections, outstanding, payload_size in _LOADS:
        with tempfile.TemporaryDirectory(dir=session.directory) as name:
            folder = Path(name) / "data"
            with millrace_server(session.directory, folder=folder, settings=_SETTINGS) as server:
                _fill(server, connections, outstanding, payload_size, log_bytes)
                statistics = server.statistics()
                os.kill(server.child.process.pid, signal.SIGKILL)
                server.child.process.wait(10.0)
            with millrace_server(session.directory, folder=folder, settings=_SETTINGS) as server:
                recovery = server.statistics()["recovery"]
                start_s = server.start_s
        written = statistics["wal"]["written_bytes"]
        yield Row(
            name=f"start after a kill, {Quantity(written, Unit.BYTES)} of log, appends of {payload_size:,} B",
            figure=Quantity(start_s, Unit.SECONDS),
            reference_name="5 s for 1 GB",
            reference=Quantity(_LIMIT_S * written / _LOG_BYTES, Unit.SECONDS),
            target=Target(Bound.AT_MOST, 1.0),
            syncs=SyncRate(0.0, "not of the start"),
            conditions=(
                f"{statistics['front']['appends_total']:,.0f} appends, none of them in tier 2; from the start of the "
                f"process to its first line, {Quantity(recovery['duration_s'], Unit.SECONDS)} of it reading the log, "
                f"of which {Quantity(recovery['tail_bytes'], Unit.BYTES)} are held in memory again"
            ),
        )


def _fill(server: MillraceServer, connections: int, outstanding: int, payload_size: int, log_bytes: float) -> None:
    for number in itertools.islice(itertools.count(), _ROUNDS_MAX):
        if server.statistics()["wal"]["written_bytes"] >= log_bytes:
            return
        options = AppenderOptions(
            address=server.address,
            connections=connections,
            outstanding=outstanding,
            payload_size=payload_size,
            duration_s=_FILL_ROUND_S,
            warm_up_s=0.0,
            segment_prefix=f"raw/recovery-{number}",
        )
        measured("appender", options, AppenderResult)
    raise TimeoutError("the log did not fill")
