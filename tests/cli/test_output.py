import io
import re
import sys

import pytest
from rich.text import Text

from millrace.cli.output import print_error, print_facts, print_json, print_table, progress
from millrace.client.waiting import Waiting, WaitReason


def test_a_table_in_a_pipe_is_plain_and_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "size"), [("a" * 500, 1), ("[bold]b[/]", 20)])

    lines = capsys.readouterr().out.splitlines()

    assert lines[0].split() == ["name", "size"]
    assert lines[1] == f"{'a' * 500}     1"
    assert lines[2].startswith("[bold]b[/] ")
    assert "\x1b" not in "".join(lines)


def test_values_are_words_that_people_use(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts({"open": True, "missing": None, "bytes": b"\x01\xff", "styled": Text("x", style="red")})

    assert capsys.readouterr().out.splitlines() == ["open     yes", "missing", "bytes    01ff", "styled   x"]


def test_json_is_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": "x" * 300, "word": "Wörter"})

    assert f'"text": "{"x" * 300}"' in capsys.readouterr().out


def test_errors_go_to_standard_error_with_their_hint(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("[no markup] here", hint="try this")

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == ["error: [no markup] here", "       try this"]


def test_there_is_no_progress_bar_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("working", total=10) as update:
        update(advance=5)
        update(description="still [working")

    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


WAITING = Waiting(reason=WaitReason.NO_SPACE, since_s=0.0, detail="the disk is full")


def test_a_progress_bar_shows_what_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behaviour 89."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")

    with progress("writing", total=None) as update:
        update.show_waiting(WAITING)
        update._bar.refresh()
        shown = terminal.getvalue()
        update.show_waiting(None)
        terminal.truncate(0)
        update._bar.refresh()
        assert "waiting" not in terminal.getvalue()

    assert re.search(r"waiting .*: no space", shown)


def test_without_a_bar_what_is_waited_for_is_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("writing", total=None) as update:
        update.show_waiting(WAITING)
        update.show_waiting(None)

    said = ["waiting for the server, no space: the disk is full", "waiting is over"]
    assert capsys.readouterr().err.splitlines() == said


def test_on_a_terminal_there_is_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")

    print_table(("name",), [("a",)])

    assert "\x1b[" in terminal.getvalue()
