import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.client.testing import TestServer
from tests.cli.conftest import Run

Complete = Callable[[str, str], list[str]]


@pytest.fixture
def complete(run: Run, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """Ask what a shell would offer after some words, of which the last one may be unfinished."""

    def ask(line: str, address: str) -> list[str]:
        words = line.split(" ")
        monkeypatch.setenv("MILLRACE_ADDRESS", address)
        monkeypatch.setenv("_MILLRACE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line.strip())
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        outcome = run()
        assert (outcome.code, outcome.err) == (0, "")
        return outcome.lines

    return ask


def test_streams_are_completed_from_the_server(ask: Run, running: TestServer, complete: Complete) -> None:
    for name in ("completed/a", "completed/b", "other/c"):
        ask("stream", "create", name)

    for command in ("read", "tail", "write", "stream info", "cut save"):
        assert complete(f"millrace {command} comp", running.address) == ["completed/a", "completed/b"]
    assert complete("millrace read completed/a oth", running.address) == ["other/c"]
    away = f"millrace read --address {running.address} completed/b"
    assert complete(away, "127.0.0.1:1") == ["completed/b"]


def test_options_and_commands_are_completed(complete: Complete) -> None:
    assert "--writer-id" in complete("millrace write --w", "127.0.0.1:1")
    assert complete("millrace stream trunc", "127.0.0.1:1") == ["truncate"]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere.invalid:1", "no address:x"])
def test_without_a_server_nothing_is_completed_and_nothing_said(complete: Complete, address: str) -> None:
    assert "".join(complete("millrace read shop/", address)) == ""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
def test_bash_completes_a_stream(ask: Run, running: TestServer, tmp_path: Path) -> None:
    """The script that `--show-completion` prints, in a real shell."""
    ask("stream", "create", "completed/in-bash")
    program = tmp_path / "millrace"
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom millrace.cli.main import main\nsys.exit(main())\n")
    program.chmod(0o755)
    script = """
        eval "$(_MILLRACE_COMPLETE=source_bash millrace)"
        COMP_WORDS=(millrace read completed/in-b) COMP_CWORD=2
        $(complete -p millrace | sed 's/.*-F \\([^ ]*\\).*/\\1/') millrace
        echo "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "MILLRACE_ADDRESS": running.address}
    shown = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)

    assert (shown.stdout, shown.stderr) == ("completed/in-bash\n", "")
