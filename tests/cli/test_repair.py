"""`millrace repair`: a log that has lost something, from the outside."""

from pathlib import Path

import pytest

import millrace
from millrace.client.testing import server
from tests.cli.conftest import Run
from tests.support.data_folders import SMALL_LOG
from tests.support.repairs import repaired_container

pytestmark = pytest.mark.slow


def content_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


def test_a_folder_that_misses_nothing_needs_no_repair(run: Run, stopped_folder: Path) -> None:
    before = content_of(stopped_folder)
    for arguments in ([], ["--accept-loss"]):
        done = run("repair", stopped_folder, *arguments, "--json")
        assert done.code == 0
        container = repaired_container(done.json)
        assert (container["loss"], container["plan"], container["accepted"]) == (None, None, False)
    assert content_of(stopped_folder) == before


def test_a_loss_is_shown_and_accepted_only_if_asked_for(run: Run, stopped_folder: Path) -> None:
    """Behaviour 82: how much and since when, to the client and to the operator; nothing is given out again."""
    for log in (stopped_folder / "containers" / "0000" / "wal").glob("wal-*.log"):
        log.unlink()
    with server(stopped_folder, settings=SMALL_LOG) as running, millrace.blocking.connect(running.address) as client:
        assert client.segments.read("raw/a", 0).data[:1000] == b"a" * 1000
        with pytest.raises(
            millrace.ContentLostError, match=r"since 20.*at most \d+ KiB.*millrace repair FOLDER --accept-loss"
        ):
            client.segments.append("raw/a", b"new")
        with pytest.raises(millrace.ContentLostError), client.writer("shop/orders") as writer:
            writer.write(b"new").result()

    before = content_of(stopped_folder)
    shown = run("repair", stopped_folder, "--json")
    assert shown.code == 1
    container = repaired_container(shown.json)
    assert not container["accepted"]
    assert container["loss"]["size_bytes"] > 0
    assert container["loss"]["since"].startswith("20")
    (hole,) = container["plan"]["holes"]
    assert (hole["name"], hole["start"]) == ("raw/a", 3000)
    assert len(container["plan"]["sealed"]) == 2
    said = run("repair", stopped_folder)
    assert said.code == 1
    assert "nothing was changed" in " ".join(said.err.split())
    assert content_of(stopped_folder) == before
    told = run("verify", stopped_folder, "--json")
    assert told.code == 1
    assert "millrace repair" in str(told.json["findings"])
    assert "millrace repair" in str(run("inspect", stopped_folder, "--json").json["problems"])

    accepted = run("repair", stopped_folder, "--accept-loss", "--json")
    assert accepted.code == 0
    assert repaired_container(accepted.json) == container | {"accepted": True}
    assert run("repair", stopped_folder).code == 0
    checked = run("verify", stopped_folder, "--json")
    assert checked.json["findings"] == []
    assert "was accepted" in str(checked.json["notes"])
    assert "accepted_loss" in run("inspect", stopped_folder, "--json").out

    with server(stopped_folder, settings=SMALL_LOG) as running, millrace.blocking.connect(running.address) as client:
        assert client.segments.append("raw/a", b"new") == hole["end"]
        with client.writer("shop/orders") as writer:
            writer.write(b"new", key="one").result()
        with client.reader("shop/orders", end=millrace.TAIL) as reader:
            assert len(list(reader)) == 21
