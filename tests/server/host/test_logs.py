"""Each line of the log as JSON: an object, whatever is logged; and all lines of a server that has a bad day."""

import json
import logging
import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.client.testing import SETTINGS_SMALL
from millrace.server.errors import LogFailedError
from millrace.server.host.logs import HELD_COUNT_MAX, JsonLineFormatter, split_template
from tests.support.tables import table
from tests.support.waiting import PATIENCE_S

TEMPLATE = "stream scaled stream=%s epoch=%d"


def line_of(template: object, *values: object, error: BaseException | None = None) -> dict[str, Any]:
    """Return what a record becomes."""
    exc_info = (type(error), error, error.__traceback__) if error is not None else None
    record = logging.LogRecord("millrace.server.x", logging.ERROR, "x.py", 1, template, values, exc_info)
    text = JsonLineFormatter().format(record)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text, parse_constant=pytest.fail)
    return found


def test_event_and_fields_are_keys_with_their_types() -> None:
    line = line_of("stopped duration_s=%.3f count=%d path=%s known=%s nothing=%s", 1.25, 7, Path("/data"), True, None)

    assert line.pop("timestamp").endswith("+00:00")
    assert line == {
        "level": "ERROR", "logger": "millrace.server.x", "event": "stopped",
        "duration_s": 1.25, "count": 7, "path": "/data", "known": True, "nothing": None,
    }  # fmt: skip


@given(st.text(), st.integers())
def test_no_name_looks_like_a_field(name: str, epoch: int) -> None:
    line = line_of(TEMPLATE, name, epoch)

    assert (line["event"], line["stream"], line["epoch"]) == ("stream scaled", name, epoch)
    assert len(line) == 6


@table("value", [math.nan, math.inf, b"\xff\x00", object(), [float("nan")], "\ud800"])
def test_whatever_a_value_is_the_line_is_json(value: object) -> None:
    assert isinstance(line_of("read value=%s", value)["value"], str)


@given(st.text(), st.lists(st.one_of(st.text(), st.integers(), st.none(), st.floats())))
def test_what_libraries_log_is_an_event(template: str, values: list[object]) -> None:
    record = logging.LogRecord("library", logging.INFO, "x.py", 1, template, tuple(values), None)
    try:
        message = record.getMessage()
    except (TypeError, ValueError, KeyError, OverflowError):
        return  # nothing can write that, `logging` itself says so
    line = json.loads(JsonLineFormatter().format(record))

    assert line["event"] == message or split_template(template)[1]


def test_a_library_that_gives_a_mapping_or_no_values_is_an_event_too() -> None:
    assert line_of("%(a)s is 100%%", {"a": "x"})["event"] == "x is 100%"
    assert line_of("50% level=%s")["event"] == "50% level=%s"


def test_an_error_is_its_message_and_its_type() -> None:
    line = line_of("log failed error=%r", LogFailedError("the log failed\nat 7"))

    assert (line["error"], line["error_type"]) == ("the log failed\nat 7", "LogFailedError")


def test_an_exception_is_an_object_on_the_same_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        line = line_of("request failed unexpectedly", error=error)

    assert line["exception"].keys() == {"type", "message", "stacktrace"}
    assert (line["exception"]["type"], line["exception"]["message"]) == ("builtins.ValueError", "two\nlines")
    assert line["exception"]["stacktrace"].startswith("Traceback")


# --- a server ---


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


def run_server(folder: Path, *, settings: dict[str, str] = SETTINGS_SMALL) -> "subprocess.Popen[str]":
    arguments = ["--log-format", "json", "--log-level", "DEBUG"]
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-m", "millrace.server", str(folder), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **settings},
    )  # fmt: skip


def lines_of(process: "subprocess.Popen[str]") -> Iterator[dict[str, Any]]:
    """Yield every line that was logged until the end."""
    _, log = process.communicate(timeout=PATIENCE_S)
    for text in log.splitlines():
        line = json.loads(text, parse_constant=pytest.fail)
        assert {"timestamp", "level", "logger", "event"} <= line.keys()
        yield line


@pytest.mark.slow
def test_every_line_of_a_server_that_goes_through_errors_is_an_object(folder: Path) -> None:
    process = run_server(folder, settings={**SETTINGS_SMALL, "MILLRACE_PURPOSE": "tests"})
    assert process.stdout is not None
    host, port = json.loads(process.stdout.readline())["address"].split(":")
    for sent in (b"\x00garbage\n", b'GET /\x7f\xff HTTP/1.1\r\nHost: {"x\n\r\n\r\n', b"\x16\x03\x01\x02\x00\x01"):
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as peer:
            peer.sendall(sent.ljust(64, b"\xfe"))
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(4096):
                pass
    second = run_server(folder)  # of the same folder
    refused = list(lines_of(second))
    process.send_signal(signal.SIGTERM)
    first = list(lines_of(process))

    assert second.returncode == 1
    assert "another server" in refused[-1]["error"]
    assert refused[-1]["error_type"] == "FolderLockedError"
    events = {line["event"] for line in first}
    assert {"environment variable ignored", "serving", "garbage before the handshake", "stopped"} <= events
    assert any("spoken to the data port" in event for event in events)
    (ignored,) = [line for line in first if line["event"] == "environment variable ignored"]
    assert ignored["name"] == "MILLRACE_PURPOSE"


@pytest.mark.slow
def test_what_python_itself_would_print_is_an_object_too() -> None:
    """What ends the process or a thread, what nobody would hear of, and warnings."""
    code = (
        "import gc, threading, warnings\n"
        "from millrace.server.host.logs import configure\n"
        "configure(level='INFO', as_json=True)\n"
        "class Bad:\n    def __del__(self): raise ValueError('in\\ndel')\n"
        "warnings.warn('careful\\nplease', stacklevel=1)\n"
        "def fail(): raise KeyError('in thread')\n"
        "thread = threading.Thread(target=fail, name='flusher'); thread.start(); thread.join()\n"
        "Bad(); gc.collect()\n"
        "raise RuntimeError('at the end')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    warned, *lines = lines_of(process)

    assert "careful\nplease" in warned["event"]
    assert [line["exception"]["type"] for line in lines] == [
        "builtins.KeyError", "builtins.ValueError", "builtins.RuntimeError"
    ]  # fmt: skip
    assert lines[0]["thread"] == "flusher"
    assert process.returncode == 1


HELD = """
import logging, sys
from millrace.server.host.logs import HELD_COUNT_MAX, configure, hold
held = hold()
for number in range(HELD_COUNT_MAX + 1):
    logging.warning("early number=%d", number)
logging.error("bad")
configure(level=sys.argv[1], as_json=False, held=held)
logging.warning("late")
"""


@pytest.mark.parametrize(("level", "count"), [("WARNING", 1001), ("ERROR", 1)])
def test_what_is_held_is_written_first_as_far_as_the_level_wants_it(level: str, count: int) -> None:
    """Of very much the last."""
    ran = subprocess.run([sys.executable, "-c", HELD, level], capture_output=True, text=True, check=True)
    lines = ran.stderr.splitlines()

    assert len(lines) == count
    assert lines[min(count, HELD_COUNT_MAX) - 1].endswith("ERROR root bad")
    if level == "WARNING":
        assert lines[0].endswith("early number=2")
        assert lines[-1].endswith("late")
