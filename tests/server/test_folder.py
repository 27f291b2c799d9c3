"""Whose data folder it is."""

import json
import logging
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from millrace.server.app import Server
from millrace.server.errors import ConfigurationError, FolderLockedError, FolderVersionError
from millrace.server.folder import FORMAT_VERSION, IDENTITY_NAME, open_folder, read_identity
from millrace.server.host.files import OsFileSystem
from tests.support.files import MemoryFileSystem
from tests.support.folders import tree
from tests.support.protocol import Peer
from tests.support.servers import BUSY, server_options

FILES = OsFileSystem()


def test_a_folder_is_made_once_and_keeps_its_identity(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    folder = open_folder(FILES, path)
    assert folder.container(3) == path / "containers" / "0003"
    folder.lock.close()
    again = open_folder(FILES, path)
    assert again.server_id == folder.server_id == read_identity(FILES, path).server_id
    again.lock.close()


def test_two_servers_cannot_have_one_folder(tmp_path: Path) -> None:
    """Behaviour 47: the second gets a clear message."""
    folder = open_folder(FILES, tmp_path)
    with pytest.raises(FolderLockedError, match="another server owns this folder") as caught:
        open_folder(FILES, tmp_path)
    assert str(tmp_path) in str(caught.value)
    folder.lock.close()
    open_folder(FILES, tmp_path).lock.close()


@pytest.mark.parametrize(("version", "age"), [(1, "an older"), (FORMAT_VERSION + 1, "a newer")])
def test_a_folder_of_another_version_is_refused_with_both_named(tmp_path: Path, version: int, age: str) -> None:
    """Behaviour 47: a folder of a newer version; one of an older is not migrated either."""
    (tmp_path / IDENTITY_NAME).write_text(json.dumps({"format_version": version, "server_id": str(uuid.uuid4())}))
    known = f"this version knows format {FORMAT_VERSION} only"
    with pytest.raises(FolderVersionError, match=f"format {version} by {age} version; {known}"):
        open_folder(FILES, tmp_path)
    # It was given back.
    (tmp_path / IDENTITY_NAME).unlink()
    open_folder(FILES, tmp_path).lock.close()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"1", b"\xff", b"{}", b'{"format_version": 4}', b'{"format_version": 3, "server_id": 5}',
     b'{"format_version": 4, "server_id": "x"}', b'{"format_version": null, "server_id": ""}',
     b'{"format_version": Infinity, "server_id": ""}'],
)  # fmt: skip
def test_an_identity_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / IDENTITY_NAME).write_bytes(content)
    with pytest.raises(ConfigurationError, match="identity"):
        open_folder(FILES, tmp_path)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"photos/2024.jpg": "x", "notes.txt": "y"}, "notes.txt"),
        ({IDENTITY_NAME: '{"format_version": 1, "server_id": "00000000-0000-4000-8000-000000000000"}'}, "format 1"),
        ({IDENTITY_NAME: "[]", "containers/0000/wal/newest": "x"}, "identity"),
    ],
)
def test_a_folder_that_is_refused_is_left_as_it_was(tmp_path: Path, content: dict[str, str], named: str) -> None:
    """Behaviour 47: not a name, a byte, a mode or a time of it has changed."""
    folder = tmp_path / "somebody"
    for name, text in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    folder.chmod(0o755)
    before = tree(folder)
    with pytest.raises(ConfigurationError, match=named):
        open_folder(FILES, folder)
    assert tree(folder) == before


def test_a_folder_that_another_server_has_is_left_as_it_was(tmp_path: Path) -> None:
    """Behaviour 47."""
    folder = open_folder(FILES, tmp_path)
    before = tree(tmp_path)
    with pytest.raises(FolderLockedError):
        open_folder(FILES, tmp_path)
    assert tree(tmp_path) == before
    folder.lock.close()


def test_the_root_of_a_fresh_file_system_will_do(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    open_folder(FILES, tmp_path).lock.close()


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="file"):
        open_folder(FILES, tmp_path / "file")


@pytest.mark.parametrize("seed", range(10))
def test_an_identity_once_told_survives_a_loss_of_power(seed: int) -> None:
    files = MemoryFileSystem()
    folder = open_folder(files, Path("/data"))
    files.crash(seed)
    assert open_folder(files, Path("/data")).server_id == folder.server_id


@pytest.fixture
def open_umask() -> Iterator[None]:
    """As where everybody may read everything."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(path: Path) -> dict[str, str]:
    """The modes of a folder and of all that is in it."""
    return {str(each.relative_to(path)): f"{stat.S_IMODE(each.stat().st_mode):o}" for each in (path, *path.rglob("*"))}


@pytest.mark.slow
@pytest.mark.asyncio
async def test_everything_a_server_makes_is_for_its_owner_alone(tmp_path: Path, open_umask: None) -> None:
    """Files 0600, folders 0700; also what SQLite makes, and chunks."""
    path = tmp_path / "data"
    async with (
        Server(server_options(path, container=BUSY)) as server,
        await Peer.connect(server.address) as peer,
    ):
        segment_id = await peer.create_segment("raw/a")
        for _ in range(5):
            await peer.store(segment_id, bytes(50_000))
    seen = modes(path)
    assert any(name.startswith("tier2/") and name.endswith(".chunk") for name in seen)
    assert {"lock", "identity.json", "containers/0000/checkpoint.db", "containers/0000/wal/newest"} <= set(seen)
    folders = {name for name in seen if (path / name).is_dir()}
    assert {name: mode for name, mode in seen.items() if mode != ("700" if name in folders else "600")} == {}


def test_a_journal_is_for_the_owner_alone(tmp_path: Path, open_umask: None) -> None:
    """What SQLite keeps beside its file, too."""
    with closing(FILES.database(tmp_path / "a.db", mode="rwc")) as database:
        database.execute("CREATE TABLE t (a)")
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT INTO t VALUES (1)")
        assert modes(tmp_path) | {".": ""} == {".": "", "a.db": "600", "a.db-journal": "600"}
        database.execute("COMMIT")


def test_a_folder_that_others_could_look_into_is_closed_to_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One of an older version, or one that was made by hand."""
    caplog.set_level(logging.INFO)
    for _ in range(2):
        tmp_path.chmod(0o755)
        open_folder(FILES, tmp_path).lock.close()
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
        assert "data folder made private" in caplog.text
        caplog.clear()
    open_folder(FILES, tmp_path).lock.close()
    assert not caplog.text


def test_a_folder_that_is_not_ours_to_close_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class SomebodyElses(OsFileSystem):
        def close_to_others(self, path: Path) -> bool:
            raise PermissionError(1, "Operation not permitted", str(path))

    open_folder(SomebodyElses(), tmp_path).lock.close()
    assert "data folder is accessible to other users" in caplog.text
    assert "Operation not permitted" in caplog.text
