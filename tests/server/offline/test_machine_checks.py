from pathlib import Path

import pytest

from millrace.server.object_store import StoreUrl
from millrace.server.offline.disk import SyncedWrites
from millrace.server.offline.machine_checks import disk_checks, machine_checks, room_check, store_checks, sync_check
from millrace.wire.limits import MIB
from tests.support.s3 import HttpFault, MotoServer
from tests.support.small_disk import small_disk
from tests.support.tables import table


def writes(latency_s: float, *, size_bytes: int = 4096) -> SyncedWrites:
    return SyncedWrites(size_bytes=size_bytes, latencies_s=(latency_s,) * 100, elapsed_s=latency_s * 100)


@table(
    ("latency_s", "verdict", "word"), [(2e-6, "warning", "suspiciously"), (1e-4, "good", ""), (0.05, "warning", "slow")]
)
def test_a_sync_is_judged_by_its_usual_time(latency_s: float, verdict: str, word: str) -> None:
    check = sync_check(writes(latency_s))

    assert check.verdict == verdict
    assert word in check.advice


def test_memory_is_no_place_for_data() -> None:
    checks = {check.name: check for check in disk_checks(Path("/dev/shm"), writes(2e-6), writes(1e-4))}

    assert checks["file system"].verdict == "bad"


def test_a_disk_that_stalls_is_told(tmp_path: Path) -> None:
    stalling = SyncedWrites(size_bytes=4096, latencies_s=(1e-4,) * 90 + (0.2,) * 10, elapsed_s=2.0)

    checks = {check.name: check for check in disk_checks(tmp_path, stalling, writes(1e-3))}

    assert checks["sync of 4 KiB, p50"].verdict == "good"
    assert checks["sync of 4 KiB, p99"].verdict == "warning"


def test_a_volume_that_holds_no_server_is_bad_and_a_small_one_is_not(tmp_path: Path) -> None:
    """Behaviour 103."""
    for size_bytes, verdict, word in ((64 * MIB, "bad", "76.0 MiB"), (96 * MIB, "warning", "1.0 GiB")):
        with small_disk(tmp_path / str(size_bytes), size_bytes) as disk:
            check = room_check(disk)
            assert check.verdict == verdict
            assert word in check.advice


def test_a_volume_that_is_full_of_the_data_of_a_server_is_named(tmp_path: Path) -> None:
    """Behaviour 103."""
    with small_disk(tmp_path / "disk", 2 * MIB) as disk:
        log = disk / "containers" / "0000" / "wal"
        log.mkdir(parents=True)
        (log / "wal-0000000000000001.log").write_bytes(bytes(MIB))
        check = room_check(disk)
        assert check.verdict == "bad"
        assert "truncate or delete streams" in check.advice


def test_versions_and_limits_are_told() -> None:
    names = [check.name for check in machine_checks()]

    assert {"open files", "system", "Python", "millrace-streams", "uvloop", "Java"} <= set(names)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_store_that_is_busy_is_told(moto: MotoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = moto.make_bucket()
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    for method in ("GET", "PUT"):
        moto.gate.fail(method, *[HttpFault.UNAVAILABLE] * 1000)

    checks, containers = await store_checks(StoreUrl.parse(bucket.url), patience_s=0.01)

    [check] = checks
    assert (check.verdict, containers) == ("bad", [])
    assert "might not start" in check.advice
