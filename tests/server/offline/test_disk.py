from pathlib import Path

from millrace.server.offline.disk import (
    PROBE_FILE_BYTES,
    SyncedWrites,
    file_system_of,
    measure_synced_writes,
    probe_file,
)


def writes(*latencies_s: float) -> SyncedWrites:
    return SyncedWrites(size_bytes=4096, latencies_s=tuple(sorted(latencies_s)), elapsed_s=sum(latencies_s))


def test_as_many_writes_as_asked_for_are_measured(tmp_path: Path) -> None:
    seen: list[int] = []

    with probe_file(tmp_path) as file:
        measured = measure_synced_writes(
            file, size_bytes=PROBE_FILE_BYTES // 3, duration_s=60, count_max=5, on_write=lambda: seen.append(1)
        )

        assert file.size() == PROBE_FILE_BYTES
    assert len(measured.latencies_s) == len(seen) == 5
    assert list(measured.latencies_s) == sorted(measured.latencies_s)
    assert measured.rate > 0


def test_the_probe_leaves_no_file(tmp_path: Path) -> None:
    with probe_file(tmp_path):
        assert list(tmp_path.iterdir())

    assert list(tmp_path.iterdir()) == []


def test_percentiles() -> None:
    measured = writes(*(number / 1000 for number in range(1, 101)))

    assert measured.percentile_s(50) == 0.051
    assert measured.percentile_s(100) == 0.1


def test_syncs_of_microseconds_are_suspicious() -> None:
    assert writes(2e-6, 2e-6, 1e-3).is_suspicious
    assert not writes(2e-6, 90e-6, 95e-6).is_suspicious


def test_the_file_system_of_a_folder_is_known() -> None:
    assert file_system_of(Path("/proc"))[0] == "proc"
    assert file_system_of(Path("/proc/self"))[1] == "/proc"
