import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace.client import blocking
from millrace.client.testing import SETTINGS_SMALL, TestServer, server
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


@pytest.fixture
def guarded() -> Iterator[TestServer]:
    """A server that asks for the token `s3cret`, with the stream `guarded/a`."""
    with server(settings={**SETTINGS_SMALL, "MILLRACE_FRONT_TOKEN": "s3cret"}) as running:
        with blocking.connect(running.address, token="s3cret") as client:
            client.create_stream("guarded/a")
        yield running


def test_completion_sends_the_token(
    guarded: TestServer, complete: Complete, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("s3cret\n")
    wrong.write_text("a\nb\n")

    assert complete(f"millrace read --token-file {right} guarded/", guarded.address) == ["guarded/a"]
    assert complete(f"millrace cut save --token-file {right} guarded/", guarded.address) == ["guarded/a"]
    for other in ("", f"--token-file {wrong} ", f"--token-file {tmp_path / 'none'} "):
        assert "".join(complete(f"millrace read {other}guarded/", guarded.address)) == ""
    monkeypatch.setenv("MILLRACE_TOKEN_FILE", str(right))
    assert complete("millrace read guarded/", guarded.address) == ["guarded/a"]


def test_options_and_commands_are_completed(complete: Complete) -> None:
    assert "--writer-id" in complete("millrace write --w", "127.0.0.1:1")
    assert complete("millrace stream trunc", "127.0.0.1:1") == ["truncate"]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere.invalid:1", "no address:x"])
def test_without_a_server_nothing_is_completed_and_nothing_said(complete: Complete, address: str) -> None:
    assert "".join(complete("millrace read shop/", address)) == ""


Shell = Callable[[str, str], str]


@pytest.fixture
def shell(ask: Run, running: TestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Run a script in a real shell that has the program and the stream `completed/in-NAME`; return what it says.

    The script finds what `--show-completion` prints there in `$1`, and `$2` is a file for its own use.
    """

    def run_script(name: str, script: str) -> str:
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not here")
        ask("stream", "create", f"completed/in-{name}")
        program = tmp_path / "millrace"
        program.write_text(f"#!{sys.executable}\nimport sys\nfrom millrace.cli.main import main\nsys.exit(main())\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("MILLRACE_ADDRESS", running.address)
        completion = tmp_path / "completion"
        source = {**os.environ, "_MILLRACE_COMPLETE": f"source_{name}"}
        completion.write_bytes(subprocess.run(["millrace"], env=source, capture_output=True, check=True).stdout)
        path = tmp_path / "script"
        path.write_text(script)
        shown = subprocess.run([name, path, completion, tmp_path / "out"], capture_output=True, text=True, check=False)
        assert shown.stderr == ""
        return shown.stdout

    return run_script


@pytest.mark.slow
def test_bash_completes_a_stream(shell: Shell) -> None:
    script = """
        . "$1"
        COMP_WORDS=(millrace read completed/in-b) COMP_CWORD=2
        $(complete -p millrace | sed 's/.*-F \\([^ ]*\\).*/\\1/') millrace
        echo "${COMPREPLY[@]}"
    """

    assert shell("bash", script) == "completed/in-bash\n"


@pytest.mark.slow
def test_fish_completes_a_stream(shell: Shell) -> None:
    assert shell("fish", 'source $argv[1]; complete -C "millrace read completed/in-f"') == "completed/in-fish\n"


@pytest.mark.slow
def test_zsh_completes_a_stream(shell: Shell) -> None:
    """At a terminal: zsh completes nowhere else."""
    script = """
        zmodload zsh/zpty
        setup="autoload -Uz compinit && compinit -u -D && . '$1'; "
        setup+="show() { zle complete-word; print -r -- \\"\\$BUFFER\\" >'$2'; exit }; zle -N show; bindkey '^I' show"
        zpty shell zsh -f -i
        zpty -w shell "$setup"
        zpty -w -n shell $'millrace read completed/in-z\\t'
        while zpty -r shell shown; do :; done
        cat "$2"
    """

    assert shell("zsh", script) == "millrace read completed/in-zsh \n"


@pytest.mark.parametrize(("content", "problem"), [(b"\n", "holds no token"), (b"a\nb\n", "several lines")])
def test_a_token_file_without_one_token_is_wrong_usage(ask: Run, tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "token").write_bytes(content)

    outcome = ask("stream", "list", "--token-file", tmp_path / "token")

    assert outcome.code == 2
    assert f"{tmp_path / 'token'}: " in outcome.err
    assert problem in outcome.err
