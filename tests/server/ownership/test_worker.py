"""What a process says of itself."""

import os
import socket
from pathlib import Path

from millrace.server.folder import open_folder
from millrace.server.host.files import OsFileSystem
from millrace.server.ownership import Worker
from tests.support.clock import ManualClock


def test_processes_in_one_folder_have_one_place_and_others_have_another(tmp_path: Path) -> None:
    for name in ("a", "b"):
        open_folder(OsFileSystem(), tmp_path / name).lock.close()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    one, again, linked, other = (
        Worker.in_folder(tmp_path / name, clock=ManualClock()) for name in ("a", "a", "link", "b")
    )
    assert one.place == again.place == linked.place != other.place
    assert len({each.worker_id for each in (one, again, linked, other)}) == 4
    assert (one.host, one.pid, one.started) == (socket.gethostname(), os.getpid(), "2023-11-14T22:13:20+00:00")
    assert str(linked) == f"{one.host} ({tmp_path / 'a'})"


def test_a_folder_that_was_made_again_is_another_place(tmp_path: Path) -> None:
    files = OsFileSystem()
    open_folder(files, tmp_path / "a").lock.close()
    one = Worker.in_folder(tmp_path / "a", clock=ManualClock())
    (tmp_path / "a").rename(tmp_path / "old")
    open_folder(files, tmp_path / "a").lock.close()
    assert Worker.in_folder(tmp_path / "a", clock=ManualClock()).place != one.place


def test_a_folder_that_is_not_on_a_disk_or_has_an_odd_name_can_be_told() -> None:
    named = Worker.in_folder(Path(os.fsdecode(b"/nowhere/\xff")), clock=ManualClock())
    assert named.folder == "/nowhere/\\xff"
    assert named.place.endswith("#0")
