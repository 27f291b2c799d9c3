import io
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from millrace.cli.main import main
from millrace.cli.output import print_error, print_facts, print_json, print_table, progress
from millrace.client import blocking
from millrace.client.testing import TestServer
from millrace.client.waiting import WaitInfo, WaitReason
from millrace.model.policy import ScalingPolicy, StreamConfig


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


WAITING = WaitInfo(reason=WaitReason.NO_SPACE, since_s=0.0, detail="the disk is full")


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


def narrow_terminal(patch: pytest.MonkeyPatch) -> Terminal:
    """Return a terminal of 60 columns that is standard output from now on."""
    terminal = Terminal()
    patch.setattr(sys, "stdout", terminal)
    for name, value in (("TERM", "xterm"), ("COLUMNS", "60")):
        patch.setenv(name, value)
    return terminal


def lines_of(terminal: Terminal) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()


def test_a_table_that_is_too_wide_becomes_a_block_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = narrow_terminal(monkeypatch)
    columns = ("segment", "keys from", "to", "start", "length", "events", "state")
    print_table(columns, [(7, "0.0000", "0.5000", 281474976710657, 281474976710658, 3, "open"), (8, *[""] * 6)])

    lines = lines_of(narrow)
    assert [line.split() for line in lines[3:6]] == [
        ["start", "281474976710657"],
        ["length", "281474976710658"],
        ["events", "3"],
    ]
    assert len(lines) == 15


def test_a_table_that_fits_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = narrow_terminal(monkeypatch)
    print_table(("name", "kind", "cut"), [("before-release", "bookmark", "shop/orders@12:4096.0," * 5)])

    assert lines_of(narrow)[1].split() == ["name", "kind", "cut"]


CELL = st.text("abc/ä水", max_size=40) | st.integers(0, 10**15)


@given(st.integers(1, 9).flatmap(lambda count: st.lists(st.tuples(*[CELL] * count), min_size=1, max_size=3)))
def test_no_table_is_wider_than_60_columns_or_loses_anything(rows: list[tuple[str | int, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        terminal = narrow_terminal(patch)
        print_table([f"column {number}" for number in range(len(rows[0]))], rows)
    lines = lines_of(terminal)

    assert max(map(cell_len, lines)) <= 60
    # What is folded lies in one column, so a mark of each value is left wherever it was broken.
    shown = "".join(sorted("".join(lines)))
    for mark in "b水":
        assert shown.count(mark) >= sum(str(cell).count(mark) for row in rows for cell in row)


def test_every_command_that_prints_a_table_fits(running: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = "tables/with-a-name-that-is-longer-than-most"
    with blocking.connect(running.address) as client:
        client.create_stream(stream, StreamConfig(scaling=ScalingPolicy.fixed(4)))
        client.segments.create("tables/segment")
        client.bookmarks(stream).save("the end of the day before yesterday")
        with client.writer(stream, writer_id="tables") as writer:
            writer.write(b"1").result()
        with client.transaction(stream, name="tables", lease_s=60) as transaction:
            transaction.write(b"1")
            transaction.flush()
            commands = (
                ["stream", "list"], ["stream", "info", stream], ["stream", "history", stream, "--no-picture"],
                ["stream", "explain", stream], ["cut", "list", stream], ["segment", "list"], ["txn", "list"],
                ["writer", "info", stream, "tables"],
            )  # fmt: skip
            for command in commands:
                terminal = narrow_terminal(monkeypatch)
                assert main([*command, "--address", running.address]) == 0, command
                lines = lines_of(terminal)
                assert len(lines) > 1
                assert max(map(cell_len, lines)) <= 60, (command, terminal.getvalue())
