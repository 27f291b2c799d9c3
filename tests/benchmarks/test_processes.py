import os
import signal
import sys
from pathlib import Path

import pytest

from benchmarks.processes import NotReadyError, find_program, free_port, running

LISTENER = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(60)"


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_a_child_is_waited_for_and_ends_with_the_block(tmp_path: Path) -> None:
    port = free_port()
    with running([sys.executable, "-c", LISTENER, str(port)], output=tmp_path / "output", lifetime_s=30.0) as child:
        child.wait_for_port(port, timeout_s=20.0)
        assert alive(child.process.pid)

    assert not alive(child.process.pid)


@pytest.mark.slow
def test_a_child_outlives_neither_its_time_nor_a_deaf_ear(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    with running([sys.executable, "-c", deaf], output=tmp_path / "output", lifetime_s=0.2) as child:
        assert child.process.wait(20.0) == -signal.SIGKILL


@pytest.mark.slow
def test_a_child_that_ends_early_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with running([sys.executable, "-c", "print('no disk')"], output=tmp_path / "output", lifetime_s=30.0) as child:
        child.process.wait(20.0)
        with pytest.raises(NotReadyError, match="no disk"):
            child.wait_for_port(free_port(), timeout_s=1.0)


def test_a_program_is_found_outside_the_path_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "15").mkdir()
    (tmp_path / "15" / "initdb-of-the-test").touch(mode=0o755)

    assert find_program("initdb-of-the-test", f"{tmp_path}/*") == str(tmp_path / "15" / "initdb-of-the-test")
    assert find_program("no-such-program", f"{tmp_path}/*") is None
