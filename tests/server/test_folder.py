"""Whose data folder it is."""

import json
import uuid
from pathlib import Path

import pytest

from millrace.server.errors import ConfigurationError, FolderLockedError, FolderVersionError
from millrace.server.folder import IDENTITY_NAME, open_folder, read_identity
from millrace.server.host.files import OsFileSystem
from tests.support.files import MemoryFileSystem

FILES = OsFileSystem()


def test_a_folder_is_made_once_and_keeps_its_identity(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    folder = open_folder(FILES, path)
    assert folder.container(3) == path / "containers" / "0003"
    folder.lock.close()
    again = open_folder(FILES, path)
    assert again.server_id == folder.server_id == read_identity(FILES, path)
    again.lock.close()


def test_two_servers_cannot_have_one_folder(tmp_path: Path) -> None:
    """Behaviour 47: the second gets a clear message."""
    folder = open_folder(FILES, tmp_path)
    with pytest.raises(FolderLockedError, match="another server owns this folder") as caught:
        open_folder(FILES, tmp_path)
    assert str(tmp_path) in str(caught.value)
    folder.lock.close()
    open_folder(FILES, tmp_path).lock.close()


@pytest.mark.parametrize(("version", "age"), [(1, "an older"), (7, "a newer")])
def test_a_folder_of_another_version_is_refused_with_both_named(tmp_path: Path, version: int, age: str) -> None:
    """Behaviour 47: a folder of a newer version; one of an older is not migrated either."""
    (tmp_path / IDENTITY_NAME).write_text(json.dumps({"format_version": version, "server_id": str(uuid.uuid4())}))
    with pytest.raises(FolderVersionError, match=rf"format {version} by {age} version; this one knows format 4 only"):
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


def test_somebody_elses_folder_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(ConfigurationError, match="photos"):
        open_folder(FILES, tmp_path)
    assert not (tmp_path / IDENTITY_NAME).exists()


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
