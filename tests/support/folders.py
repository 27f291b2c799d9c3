"""Folders for tests that start servers by the hundred and are not about the disk."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """An empty folder in memory, where there is such a thing: syncs cost nothing there. Gone after the test."""
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="millrace-test-") as name:
        # A folder inside, so that a test may put something beside it.
        folder = Path(name) / "data"
        folder.mkdir()
        yield folder


def tree(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return mode, time of change and content of a folder and of all that is in it, by path."""
    found: dict[str, tuple[int, int, bytes]] = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_mtime_ns, content)
    return found
