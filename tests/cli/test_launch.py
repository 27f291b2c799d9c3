import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

LAUNCH = "import sys; from millrace.cli.launch import launch; sys.exit(launch())"
FIRST = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", sys.executable, "-c"]
"""Runs a program of Python as the first process of a container, number 1."""
END_S = 20.0


@contextmanager
def first(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a command as the first process; kill it in the end."""
    process = subprocess.Popen([*FIRST, LAUNCH, *arguments], stderr=subprocess.PIPE, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


def terminate(process: "subprocess.Popen[str]") -> int:
    """Send SIGTERM to the first process, and return its exit code."""
    (inner,) = psutil.Process(process.pid).children()
    inner.send_signal(signal.SIGTERM)
    return process.wait(END_S)


@pytest.fixture(autouse=True)
def _allowed() -> None:
    try:
        subprocess.run([*FIRST, "import os; assert os.getpid() == 1"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine makes no containers for its users")


@pytest.mark.slow
def test_the_first_process_of_a_container_is_ended_as_any_other() -> None:
    """It is not, by the system, unless it handles the signal."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(END_S)
        with first("stream", "list", "--address", f"127.0.0.1:{silent.getsockname()[1]}") as process:
            connected, _ = silent.accept()
            with connected:
                assert terminate(process) == 128 + signal.SIGTERM


@pytest.mark.slow
def test_the_first_process_of_a_container_stops_in_good_order(tmp_path: Path) -> None:
    at = ("--listen", "127.0.0.1:0", "--console", "127.0.0.1:0")
    with first("serve", "--data-dir", str(tmp_path / "data"), "--log-level", "info", *at) as process:
        assert process.stderr is not None
        assert any("serving address=" in line for line in process.stderr)
        assert terminate(process) == 0
