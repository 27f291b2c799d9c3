"""Child processes that cannot outlive a benchmark: bounded in time, killed at the end, loopback only."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LOOPBACK: Final = "127.0.0.1"
_STOP_TIMEOUT_S: Final = 5.0
_CONNECT_RETRY_S: Final = 0.05


class NotReadyError(Exception):
    """A child process ended, or did not listen in time; the text holds the end of its output."""


@dataclass(frozen=True, slots=True)
class Child:
    """A running child process and the file that takes its output."""

    process: subprocess.Popen[bytes]
    output: Path

    def last_output(self, *, size_bytes_max: int = 2000) -> str:
        """Return the end of what the process has said so far."""
        return self.output.read_bytes()[-size_bytes_max:].decode(errors="replace")

    def wait_for_port(self, port: int, *, timeout_s: float) -> None:
        """Return once the port accepts connections.

        Raises:
            NotReadyError: the process ended first, or the time is over.
        """
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if self.process.poll() is not None:
                raise NotReadyError(f"{self.process.args!r} ended with {self.process.returncode}: {self.last_output()}")
            with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1.0):
                return
            time.sleep(_CONNECT_RETRY_S)  # the one thing here that has no event to wait for
        raise NotReadyError(f"nothing listens on port {port} after {timeout_s:g} s: {self.last_output()}")


@contextlib.contextmanager
def running(
    arguments: Sequence[str],
    *,
    output: Path,
    lifetime_s: float,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    user: str | None = None,
    stop_signal: signal.Signals = signal.SIGTERM,
) -> Iterator[Child]:
    """Run a program in a process group of its own, and end the whole group on exit.

    Args:
        lifetime_s: the group is killed after this long, whatever the benchmark does.
        environment: added to ours.
        user: run as this user; needs root.
        stop_signal: asks for the end; what is left after 5 s is killed.
    """
    with output.open("wb") as sink:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            cwd=directory,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            start_new_session=True,
        )
    watchdog = threading.Timer(lifetime_s, _signal_group, (process, signal.SIGKILL))
    watchdog.daemon = True
    watchdog.start()
    try:
        yield Child(process, output)
    finally:
        watchdog.cancel()
        _signal_group(process, stop_signal)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass
        # The leader may have ended before the rest of its group.
        _signal_group(process, signal.SIGKILL)
        process.wait(_STOP_TIMEOUT_S)


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def find_program(name: str, *folders: str) -> str | None:
    """Return the path of a program on PATH or in one of the folders (newest name first), where Debian hides some."""
    found = shutil.which(name)
    if found is not None:
        return found
    candidates = [path for folder in folders for path in Path("/").glob(f"{folder.lstrip('/')}/{name}")]
    return str(max(candidates)) if candidates else None


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # The group keeps its number while any member lives, so this never reaches a stranger's group.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
