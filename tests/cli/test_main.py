import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from millrace.cli.main import main
from tests.cli.conftest import Run

COMMANDS = (
    "serve",
    "settings",
    "demo",
    "stream",
    "segment",
    "txn",
    "write",
    "read",
    "tail",
    "inspect",
    "verify",
    "doctor",
    "bench",
)
UNUSED_PORT = "127.0.0.1:1"


def test_help_names_every_command(run: Run) -> None:
    outcome = run("--help")

    assert outcome.code == 0
    for command in COMMANDS:
        assert command in outcome.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(run: Run, command: str) -> None:
    assert run(command, "--help").code == 0


def test_the_version_is_told(run: Run) -> None:
    assert run("--version").out.startswith("millrace 0.")


@pytest.mark.parametrize(
    "arguments",
    [
        ["stream", "list"],
        ["stream", "info", "shop/orders"],
        ["segment", "append", "raw/a", "text"],
        ["read", "shop/orders"],
        ["tail", "shop/orders"],
    ],
)
def test_a_server_that_cannot_be_reached_is_exit_code_3_with_a_hint(run: Run, arguments: list[str]) -> None:
    outcome = run(*arguments, "--address", UNUSED_PORT)

    assert outcome.code == 3
    assert f"no server could be reached at {UNUSED_PORT}" in outcome.err
    assert "millrace serve" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["stream", "create"],
        ["stream", "create", "shop/orders", "--segments", "0"],
        ["read", "shop/orders", "--from", "yesterday"],
        ["inspect", "/no/such/file"],
        ["write", "shop/orders", "--key", "a", "--key-field", "b"],
        ["stream", "list", "--address", "::1"],
    ],
)
def test_wrong_usage_is_exit_code_2(run: Run, arguments: list[str]) -> None:
    outcome = run(*arguments)

    assert outcome.code == 2
    assert "Traceback" not in outcome.err


def test_a_wrong_setting_of_a_server_is_exit_code_2(run_process: Run) -> None:
    outcome = run_process("serve", "--listen", "127.0.0.1:port")

    assert outcome.code == 2
    assert "127.0.0.1:port" in outcome.err
    assert "Traceback" not in outcome.err


def test_a_name_outside_the_rule_is_wrong_usage(ask: Run) -> None:
    outcome = ask("stream", "create", "no-scope")

    assert outcome.code == 2
    assert "not of the form scope/name" in outcome.err


def test_a_missing_stream_is_exit_code_1_with_a_hint(ask: Run) -> None:
    outcome = ask("stream", "info", "main/missing")

    assert outcome.code == 1
    assert "millrace stream create main/missing" in outcome.err


def test_what_the_system_refuses_is_told_in_a_line(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "secret.log"
    target.symlink_to(target)

    outcome = run("verify", target)

    assert outcome.code == 1
    assert len(outcome.err.splitlines()) == 1


def test_without_a_command_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) in (0, 2)
    assert "Usage" in "".join(capsys.readouterr())


Unread = Callable[[str], None]


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[Unread]:
    """Let standard output, or standard error, be a pipe that nobody reads, as after `| head`."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))  # what is put in their place is taken away again
    files = []

    def close(name: str) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        files.append(os.fdopen(writing, "w"))
        monkeypatch.setattr(sys, name, files[-1])

    yield close
    for file in files:
        with suppress(BrokenPipeError):
            file.close()


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["read", "--help"], ["--version"], ["--show-completion", "bash"], ["settings"], ["inspect", "FOLDER"]],
    ids=" ".join,
)
def test_nobody_who_reads_to_the_end_is_no_error(
    run: Run, unread: Unread, stopped_folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """As with `| head`: exit code 0, and not a word."""
    # Typer would look for the shell that has started the tests, and there may be none.
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    unread("stdout")

    outcome = run(*(str(stopped_folder) if each == "FOLDER" else each for each in arguments))

    assert (outcome.code, outcome.err) == (0, "")


def test_a_wrong_usage_is_one_where_nobody_reads_why(run: Run, unread: Unread) -> None:
    for name in ("stdout", "stderr"):
        unread(name)

    assert run("read").code == 2


def test_completion_without_a_home_folder_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user without HOME in a container, whom the machine does not know."""

    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)

    outcome = run("--install-completion")

    assert outcome.code == 2
    assert "set HOME to its path" in outcome.err
    assert "Traceback" not in outcome.err
