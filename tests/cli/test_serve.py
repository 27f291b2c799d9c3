"""`millrace serve` as a process, since that is what it takes over."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import millrace
from millrace.client.testing import TestServer
from millrace.server.folder import FORMAT_VERSION
from tests.cli.conftest import Run
from tests.support.waiting import PATIENCE_S

PROGRAM = [sys.executable, "-c", "import sys; from millrace.cli.main import main; sys.exit(main())", "serve"]
SETTINGS = {"MILLRACE_WAL_FILE_SIZE_BYTES": str(20 << 20), "MILLRACE_WAL_HEADROOM_BYTES": str(1 << 20)}

Serve = Callable[..., "subprocess.Popen[str]"]

pytestmark = pytest.mark.slow


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start a server in `tmp_path`/data; whatever is left of it is ended."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str, settings: dict[str, str] = SETTINGS) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [*PROGRAM, "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--console", "none", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **settings},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def address_of(process: "subprocess.Popen[str]") -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if "serving address=" in line:
            return line.partition("address=")[2].split()[0]
    raise AssertionError("the server ended")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_order(serve: Serve, run: Run, tmp_path: Path, number: signal.Signals) -> None:
    process = serve()
    with millrace.blocking.connect(address_of(process)) as client:
        client.segments.create("raw/a")
        client.segments.append("raw/a", b"hello")

    process.send_signal(number)
    _, log = process.communicate()

    assert process.returncode == 0
    assert "Traceback" not in log
    assert f"ending signal={number.name}" in log
    assert "stopped" in log
    assert run("inspect", tmp_path / "data", "--json").json["segments"][0]["in tier 2"] == 5


@pytest.mark.parametrize(
    ("options", "settings"), [(["--log-format", "json"], {}), ([], {"MILLRACE_LOG_FORMAT": "json"})]
)
def test_the_log_is_json_if_wanted(serve: Serve, options: list[str], settings: dict[str, str]) -> None:
    """Also that of one which cannot start."""
    process = serve(*options, settings={**SETTINGS, **settings})
    assert process.stderr is not None
    lines = [json.loads(process.stderr.readline())]
    while lines[-1]["event"] != "serving":
        lines.append(json.loads(process.stderr.readline()))
    second = serve(*options, settings={**SETTINGS, **settings})
    refused = [json.loads(line) for line in second.communicate()[1].splitlines()]
    process.send_signal(signal.SIGTERM)
    lines += [json.loads(line) for line in process.communicate()[1].splitlines()]

    assert lines[-1]["event"] == "stopped"
    assert "another server owns" in refused[-1]["error"]
    assert second.returncode == 1


def test_an_unknown_format_of_the_log_is_wrong_usage(serve: Serve) -> None:
    process = serve(settings={**SETTINGS, "MILLRACE_LOG_FORMAT": "xml"})

    assert "it must be one of text, json" in " ".join(process.communicate()[1].split())
    assert process.returncode == 2


def test_a_folder_that_another_server_owns_is_exit_code_1(serve: Serve) -> None:
    """Behaviour 47: the second exits with a clear message."""
    address_of(serve())

    second = serve()
    _, log = second.communicate()

    assert second.returncode == 1
    assert "another server owns this folder" in log
    assert "Traceback" not in log


def test_a_folder_of_a_newer_version_is_exit_code_1(serve: Serve, tmp_path: Path) -> None:
    """Behaviour 47: both versions are named."""
    (tmp_path / "data").mkdir()
    identity = {"format_version": FORMAT_VERSION + 1, "server_id": "5ba21236-5bac-4091-8000-b0711c748abe"}
    (tmp_path / "data" / "identity.json").write_text(json.dumps(identity))

    process = serve()
    _, log = process.communicate()

    assert process.returncode == 1
    assert f"format {FORMAT_VERSION + 1}" in log
    assert f"this version knows format {FORMAT_VERSION} only" in log


def test_a_port_that_is_taken_is_exit_code_1_with_a_hint(serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = serve("--listen", f"127.0.0.1:{taken.getsockname()[1]}")
        _, log = process.communicate()

    assert process.returncode == 1
    assert "cannot listen on" in log
    assert "--listen" in log
    assert "Traceback" not in log


def test_an_unknown_setting_is_wrong_usage(serve: Serve) -> None:
    process = serve(settings={"MILLRACE_WAL_FILE_SISE": "1"})
    _, log = process.communicate()

    assert process.returncode == 2
    assert "MILLRACE_WAL_FILE_SISE" in log
    assert "did you mean MILLRACE_WAL_FILE_SIZE_BYTES?" in log


def test_a_port_for_other_machines_without_a_token_is_wrong_usage(serve: Serve, tmp_path: Path) -> None:
    process = serve("--listen", "0.0.0.0:0")
    log = " ".join(process.communicate()[1].split())

    assert process.returncode == 2
    assert "--listen is 0.0.0.0:0; it must be a loopback address" in log
    assert "MILLRACE_FRONT_TOKEN" in log
    assert "--insecure" in log
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("options", "settings"), [(["--insecure"], {}), ([], {"MILLRACE_FRONT_TOKEN": "s3cret"})], ids=["insecure", "token"]
)
def test_a_port_for_other_machines_is_served_if_wanted_so(
    serve: Serve, options: list[str], settings: dict[str, str]
) -> None:
    process = serve("--listen", "0.0.0.0:0", *options, settings={**SETTINGS, **settings})

    assert address_of(process).startswith("0.0.0.0:")


def test_the_token_is_read_from_a_file(serve: Serve, run: Run, tmp_path: Path) -> None:
    """Server and client can read the same file, which ends with a line feed."""
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "token").chmod(0o600)
    address = address_of(serve("--token-file", str(tmp_path / "token")))

    with millrace.blocking.connect(address, token="s3cret") as client:
        client.segments.create("raw/a")
    assert run("segment", "list", "--address", address, "--token-file", tmp_path / "token").code == 0
    without = run("segment", "list", "--address", address)
    assert without.code == 1
    assert "the server requires a token, and none was sent" in without.err


def test_a_token_file_without_a_token_starts_no_server(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    process = serve("--token-file", str(tmp_path / "token"))
    log = " ".join(process.communicate()[1].split())

    assert process.returncode == 1
    assert f"{tmp_path / 'token'}: cannot use the token file: the file holds no token" in log
    assert not (tmp_path / "data").exists()


def test_settings_come_from_a_file_and_from_options(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(
        "[wal]\nfile_size_bytes = '24 MiB'\nheadroom_bytes = '1MiB'\n[log]\nlevel = 'info'"
    )
    process = serve("--config", str(tmp_path / "m.toml"), "--set", "wal.spare_files=1", settings={})
    address_of(process)

    assert max(path.stat().st_size for path in (tmp_path / "data").glob("containers/0000/wal/*")) == 24 << 20


def test_on_a_terminal_a_banner_says_where_everything_is(running: TestServer, tmp_path: Path) -> None:
    """What a person sees; Ctrl-C then ends it in order."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0"],
        stderr=follower,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **SETTINGS, "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(follower)
    shown = b""
    while b"Ctrl-C" not in shown:
        shown += os.read(leader, 4096)
    process.send_signal(signal.SIGINT)
    code = process.wait(15)
    os.close(leader)

    text = shown.decode()
    assert code == 0
    assert "is serving" in text
    assert "http://127.0.0.1:" in text
    assert str(tmp_path / "data") in text


def test_a_terminal_that_is_closed_ends_it_in_order(tmp_path: Path) -> None:
    """It has no place for its last lines then."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--console", "none"],
        stderr=follower,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **SETTINGS},
    )
    os.close(follower)
    shown = b""
    while b"Ctrl-C" not in shown:
        shown += os.read(leader, 4096)
    os.close(leader)
    process.send_signal(signal.SIGHUP)

    assert process.wait(PATIENCE_S) == 0


def test_under_nohup_a_terminal_that_is_closed_is_of_no_effect(serve: Serve) -> None:
    handled = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited, as from `nohup`
    try:
        process = serve()
    finally:
        signal.signal(signal.SIGHUP, handled)
    address = address_of(process)
    process.send_signal(signal.SIGHUP)
    with millrace.blocking.connect(address) as client:
        client.segments.create("raw/a")

    assert process.poll() is None
