"""The token file of the server."""

from pathlib import Path

import pytest

from millrace.server.errors import ConfigurationError
from millrace.server.host.token_file import read_token


def token_file(folder: Path, content: bytes, *, mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640])
def test_a_private_file_is_read_without_a_warning(tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    assert read_token(token_file(tmp_path, b"s3cret\n", mode=mode)) == "s3cret"
    assert caplog.text == ""


def test_a_file_that_every_user_can_read_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = token_file(tmp_path, b"s3cret\n", mode=0o644)

    assert read_token(path) == "s3cret"
    assert f"token file is readable by all users, run chmod 600 path={path} mode=0644" in caplog.text
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(("content", "problem"), [(b"\n", "holds no token"), (b"s3cret\nb", "several lines")])
def test_a_file_without_one_token_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = token_file(tmp_path, content)
    with pytest.raises(ConfigurationError, match=problem) as caught:
        read_token(path)
    assert str(path) in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere: cannot read the token file: No such file"):
        read_token(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match=r"cannot read the token file: Is a directory"):
        read_token(tmp_path)
