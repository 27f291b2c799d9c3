from pathlib import Path

import pytest

from millrace.server.host.files import OsFileSystem
from millrace.server.streams import ClockHistoryFile, boot_id
from tests.support.clock import ManualClock
from tests.support.files import MemoryFileSystem


def file_in(folder: Path, clock: ManualClock, *, boot: str = "b") -> ClockHistoryFile:
    return ClockHistoryFile(OsFileSystem(), folder, boot=boot, clock=clock)


def test_readings_outlive_the_server(tmp_path: Path) -> None:
    clock = ManualClock()
    start_us = clock.unix_us()
    file = file_in(tmp_path, clock)
    file.keep(file.text_of(file.load()))
    clock.move(1000.0)

    again = file_in(tmp_path, clock).load()
    assert again.old_before_us(900.0, monotonic_s=clock.monotonic_s()) == start_us + 100_000_000
    other = file_in(tmp_path, clock, boot="another").load()
    assert other.old_before_us(900.0, monotonic_s=clock.monotonic_s()) < start_us
    assert [path.name for path in tmp_path.iterdir()] == ["clocks.json"]


def test_a_file_that_cannot_be_used_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    file = file_in(tmp_path / "none", clock)
    file.keep(file.text_of(file.load()))
    assert "cannot be kept" in caplog.text
    (tmp_path / "clocks.json").write_bytes(b"\xff\xfe")
    file_in(tmp_path, clock).load()
    assert "cannot be read" in caplog.text


def test_a_full_disk_keeps_what_was_kept(caplog: pytest.LogCaptureFixture) -> None:
    """Behaviour 44."""
    clock = ManualClock()
    files = MemoryFileSystem()
    files.make_directories(Path("/data"))
    file = ClockHistoryFile(files, Path("/data"), boot="b", clock=clock)
    file.keep(file.text_of(file.load()))
    before = file.text_of(file.load())
    files.capacity_bytes = 0
    file.keep("x" * 1000)
    assert "cannot be kept" in caplog.text
    assert file.text_of(file.load()) == before


def test_the_machine_names_its_start() -> None:
    assert boot_id() == boot_id()
