"""Shared by the programs: a server to use, and a Spark session."""

import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from millrace.client.testing import server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATE_IN_ROCKSDB: Final = {
    # Only with RocksDB can state be of several kinds, and larger than memory.
    "spark.sql.streaming.stateStore.providerClass":
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}  # fmt: skip
"""Settings of Spark for `transformWithState`."""


class Program:
    """A program that runs as a process of its own, and may be killed with all that it has started.

    Args:
        arguments: what follows `python -m`.
        log: the file that what it prints is added to.
    """

    def __init__(self, *arguments: str, log: Path) -> None:
        self._arguments = arguments
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Program":
        """Start it for the length of a block, at whose end it is killed if it still runs."""
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Kill it; if the block failed, print the end of what it had printed, which may say why."""
        self.kill()
        if kind is not None:
            print(self._printed(), file=sys.stderr)

    def start(self) -> None:
        """Start it, for the first time or once more."""
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", *self._arguments]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        """Kill it, and what it has started, with SIGKILL; nothing happens where it does not run."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    @property
    def ended(self) -> bool:
        """Whether it was started, and has ended by itself or by a kill."""
        return self._process is not None and self._process.poll() is not None

    def wait(self, timeout_s: float) -> None:
        """Wait until it ends.

        Raises:
            SystemExit: it failed, or did not end in time.
        """
        if self._process is None:
            return
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"{' '.join(self._arguments)} did not end within {timeout_s:g} s") from None
        if code != 0:
            raise SystemExit(f"{' '.join(self._arguments)} failed with {code}")

    def _printed(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """End the body on SIGTERM as Ctrl-C does, so that the processes which it has started are ended, too.

    Only the main thread receives signals; in another one nothing happens.

    Raises:
        SystemExit: the signal came.
    """
    is_ended = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal is_ended
        is_ended = True
        signal.signal(number, signal.SIG_IGN)  # a second one would end what ends them
        # In asyncio this cancels the main task. An exception could be raised within any callback, which may drop it.
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # ignored, as in the background of a shell
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except BaseException:
        if not is_ended:
            raise
    finally:
        signal.signal(signal.SIGTERM, before)
    if is_ended:
        raise SystemExit(128 + signal.SIGTERM)


@contextmanager
def server_at(address: str | None) -> Iterator[str]:
    """Give the address of a server: the one that is named, or one of its own for the length of the block."""
    if address is not None:
        yield address
        return
    with server() as started:
        yield started.address


@contextmanager
def spark_session(
    name: str, settings: Mapping[str, str] | None = None, *, log: Path | None = None
) -> Iterator["SparkSession"]:
    """Give a session of Spark on two cores of this machine, which says nothing but errors.

    Args:
        log: where it says them, with what Java says at every start; None: on standard error.

    Raises:
        Exception: whatever Spark raises when it cannot start.
    """
    # No program here uses pandas, and the warning would be in the middle of what it shows.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)

    from pyspark.sql import SparkSession

    from millrace.spark_source import MillraceDataSource

    os.environ["PYSPARK_PYTHON"] = sys.executable  # of its workers, which need Millrace as well
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").appName(name)
    usual = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # 200, as Spark has them by default, would keep a state of a few keys in 200 places.
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }
    for key, value in (usual | dict(settings or {})).items():
        builder = builder.config(key, value)
    with nullcontext() if log is None else _standard_error_in(log):
        spark = builder.getOrCreate()
    try:
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(MillraceDataSource)
        yield spark
    finally:
        spark.stop()


@contextmanager
def _standard_error_in(path: Path) -> Iterator[None]:
    """Let child processes that are started inside inherit a file as their standard error."""
    sys.stderr.flush()
    kept = os.dup(2)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(target, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)
