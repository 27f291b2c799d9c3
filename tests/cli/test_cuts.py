import pytest

import millrace
from millrace.client.testing import TestServer
from tests.cli.conftest import Run


def test_a_bookmark_is_saved_listed_and_forgotten(ask: Run) -> None:
    ask("stream", "create", "cuts/marked")

    saved = ask("cut", "save", "cuts/marked", "here")
    listed = ask("cut", "list", "cuts/marked", "--json").json
    table = ask("cut", "list", "cuts/marked").lines

    assert saved.code == 0
    assert [(cut["name"], cut["kind"], cut["cut"]) for cut in listed] == [("here", "bookmark", saved.out.strip())]
    assert table[1].split()[:2] == ["here", "bookmark"]
    assert ask("cut", "forget", "cuts/marked", "here").code == 0
    assert ask("cut", "list", "cuts/marked", "--json").json == []
    assert "nothing was changed" in ask("cut", "forget", "cuts/marked", "here").err


def test_a_cursor_is_no_bookmark(ask: Run) -> None:
    ask("stream", "create", "cuts/cursor")
    ask("cut", "save", "cuts/cursor", "billing", "--cursor", "--at", "head")

    assert ask("cut", "list", "cuts/cursor", "--json").json[0]["kind"] == "cursor"
    assert ask("read", "cuts/cursor", "--from", "bookmark:billing").code == 2
    assert ask("read", "cuts/cursor", "--from", "cursor:billing").code == 0
    assert "has no bookmark billing" in ask("cut", "forget", "cuts/cursor", "billing").err

    assert ask("cut", "save", "cuts/cursor", "billing").code == 0
    assert [cut["kind"] for cut in ask("cut", "list", "cuts/cursor", "--json").json] == ["bookmark", "cursor"]
    assert ask("cut", "forget", "cuts/cursor", "billing", "--cursor").code == 0
    assert [cut["kind"] for cut in ask("cut", "list", "cuts/cursor", "--json").json] == ["bookmark"]


def test_cursors_are_registered_together(ask: Run) -> None:
    """Behaviour 25: with the stream, or several in one step."""
    ask("stream", "create", "cuts/consumers", "--retain-consumed", "--cursor", "billing", "--cursor", "mail")
    ask("cut", "save", "cuts/consumers", "audit", "search", "--cursor", "--at", "head")

    listed = ask("cut", "list", "cuts/consumers", "--json").json
    assert [(cut["name"], cut["kind"]) for cut in listed] == [
        (name, "cursor") for name in ("audit", "billing", "mail", "search")
    ]
    assert len({cut["cut"] for cut in listed}) == 1
    assert ask("stream", "create", "cuts/twice", "--cursor", "a", "--cursor", "a").code == 2


def test_what_is_between_two_bookmarks_is_read(ask: Run, running: TestServer) -> None:
    ask("stream", "create", "cuts/between")
    with millrace.blocking.connect(running.address) as client, client.writer("cuts/between") as writer:
        for number in range(4):
            writer.write(b"%d" % number, key="a").result()
            ask("cut", "save", "cuts/between", f"after-{number}")

    assert ask("read", "cuts/between", "--from", "bookmark:after-0", "--to", "bookmark:after-2").lines == ["1", "2"]
    assert ask("read", "cuts/between", "--from", "15m ago").lines == ["0", "1", "2", "3"]
    assert ask("read", "cuts/between", "--to", "15m ago").lines == []
    assert ask("stream", "truncate", "cuts/between", "bookmark:after-2").code == 0
    assert ask("read", "cuts/between").lines == ["3"]


@pytest.mark.parametrize("place", ["nowhere", "bookmark:", "a/b@1", "soon ago"])
def test_what_is_no_place_is_told_before_anything_is_asked(run: Run, place: str) -> None:
    assert run("cut", "save", "a/b", "x", "--at", place, "--address", "127.0.0.1:1").code == 2
