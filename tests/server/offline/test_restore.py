"""What `millrace restore` does with a folder that is not as it was at first; the rest is in `test_store`."""

import uuid
from contextlib import closing
from pathlib import Path

import pytest

from millrace.server.errors import ConfigurationError
from millrace.server.folder import CONTAINERS_FOLDER, open_folder, read_identity
from millrace.server.host.files import OsFileSystem
from millrace.server.offline.owners import Life
from millrace.server.offline.remote_history import RemoteHistory
from millrace.server.offline.restore import _restore, last_owner
from tests.server.offline.test_owners import MANIFEST
from tests.support.s3 import MotoServer

URL = "s3://bucket/history"
OURS, FOREIGN = uuid.UUID(int=1), uuid.UUID(int=2)


@pytest.mark.parametrize(("server_id", "has_container"), [(FOREIGN, False), (OURS, True)])
def test_a_folder_that_a_server_has_begun_to_use_is_refused_and_left(
    tmp_path: Path, server_id: uuid.UUID, has_container: bool
) -> None:
    data_dir = tmp_path / "data"
    with closing(open_folder(OsFileSystem(), data_dir, store=URL, server_id=server_id).lock):
        if has_container:
            (data_dir / CONTAINERS_FOLDER).mkdir()

    with pytest.raises(ConfigurationError, match="meanwhile"):
        _restore(data_dir, RemoteHistory(URL, tmp_path / "fetched", ()), OURS)

    assert read_identity(OsFileSystem(), data_dir).server_id == server_id


def test_what_somebody_has_put_there_meanwhile_is_left(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()

    with pytest.raises(ConfigurationError, match="not empty"):
        _restore(tmp_path, RemoteHistory(URL, tmp_path / "fetched", ()), OURS)

    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_an_owner_that_cannot_be_asked_for_ends_no_restore(moto: MotoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in moto.make_bucket().environment.items():
        monkeypatch.setenv(name, value)

    assert last_owner("s3://missing/a", MANIFEST).life is Life.UNKNOWN
