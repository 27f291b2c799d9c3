"""Data folders that real servers have left, for the tools that read them offline."""

import shutil
from pathlib import Path

import pytest

import millrace
from millrace.client.testing import server

SMALL_LOG = {
    "MILLRACE_WAL_FILE_SIZE_BYTES": str(128 << 10),
    "MILLRACE_WAL_RUN_SIZE_BYTES_MAX": str(64 << 10),
    "MILLRACE_WAL_HEADROOM_BYTES": str(4 << 10),
}
"""Log files of 128 KiB, so that a folder is copied in no time."""


@pytest.fixture(scope="session")
def made_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two folders with the same content: of a server that was stopped, and of one that was killed."""
    stopped, killed = tmp_path_factory.mktemp("stopped"), tmp_path_factory.mktemp("killed")
    # A killed server leaves everything in the log, unless the bytes are old enough to be flushed.
    with server(killed, settings={**SMALL_LOG, "MILLRACE_CONTAINER_FLUSH_AGE_S": "3600"}) as running:
        fill(running.address)
        running.kill()
    with server(stopped, settings=SMALL_LOG) as running:
        fill(running.address)
    return {"stopped": stopped, "killed": killed}


def fill(address: str) -> None:
    """Write a segment of 3 appends, and a stream of 2 segments with 20 events of 2 keys."""
    with millrace.blocking.connect(address) as client:
        client.segments.create("raw/a")
        for letter in (b"a", b"b", b"c"):
            client.segments.append("raw/a", letter * 1000)
        config = millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(2))
        client.create_stream("shop/orders", config)
        with client.writer("shop/orders", writer_id="till-7") as writer:
            for key in ("one", "customer-3"):
                writer.write_many([b"%s %d" % (key.encode(), number) for number in range(10)], key=key).result()


@pytest.fixture
def stopped_folder(made_folders: dict[str, Path], tmp_path: Path) -> Path:
    """A data folder that was left in order: its bytes are in tier 2."""
    return Path(shutil.copytree(made_folders["stopped"], tmp_path / "stopped"))


@pytest.fixture
def killed_folder(made_folders: dict[str, Path], tmp_path: Path) -> Path:
    """A data folder whose server was killed: its bytes are in the log."""
    return Path(shutil.copytree(made_folders["killed"], tmp_path / "killed"))
