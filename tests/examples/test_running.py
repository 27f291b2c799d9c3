"""SIGTERM to an example ends the processes that it has started, too."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
BENCH = ("-c", "import sys; from millrace.cli.main import main; sys.exit(main(['bench', '--seconds', '2']))")


def is_connected(process: psutil.Process) -> bool:
    try:
        return any(each.status == psutil.CONN_ESTABLISHED for each in process.net_connections("tcp"))
    except psutil.Error:  # it has ended, or is a zombie
        return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "child_count"),
    [
        pytest.param(BENCH, 1, id="a server, under uvloop"),
        pytest.param((str(ROOT / "examples/elastic_stream.py"),), 1, id="a server, under asyncio"),
        pytest.param(("-m", "applications.word_count", "--ways", "reader"), 2, id="a program beside the server"),
        pytest.param(("-m", "applications.sensors", "--no-spark"), 2, id="a program that is started again"),
        pytest.param(("-m", "applications.change_feed"), 1, id="threads that read from curl and the server"),
    ],
)
def test_sigterm_ends_the_children_of_an_example(arguments: tuple[str, ...], child_count: int, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},  # the applications are in the checkout
    ) as example:
        process = psutil.Process(example.pid)
        children: list[psutil.Process] = []
        deadline_s = time.monotonic() + PATIENCE_S
        # One that is connected was started long ago: its parent has noted it.
        while len(children) < child_count or not all(map(is_connected, [process, *children])):
            assert example.poll() is None, example.communicate()[1]
            assert time.monotonic() < deadline_s, f"{children} of {child_count} children"
            time.sleep(0.01)
            children = process.children(recursive=True)
        example.terminate()
        error = example.communicate()[1]

    assert example.returncode == 128 + signal.SIGTERM, error
    assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []
