from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.s3 import MotoServer


@pytest.mark.slow
def test_the_command_measures_and_says_what_it_found(run: Run, tmp_path: Path) -> None:
    outcome = run("doctor", tmp_path, "--seconds", 0.1, "--json")

    checks = {check["name"]: check for check in outcome.json["checks"]}
    assert outcome.code == (1 if any(check["verdict"] == "bad" for check in checks.values()) else 0)
    assert checks["sync of 4 KiB, p50"]["found"].endswith("/s")
    assert list(tmp_path.iterdir()) == []
    assert "free space" in run("doctor", tmp_path, "--seconds", 0.1).out


@pytest.mark.slow
def test_a_store_is_probed_if_one_is_named(
    run: Run, tmp_path: Path, moto: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behaviour 93."""
    bucket = moto.make_bucket()
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)

    outcome = run("doctor", tmp_path, "--seconds", 0.1, "--store", bucket.url, "--json")
    missing = run("doctor", tmp_path, "--seconds", 0.1, "--store", "s3://missing/a", "--json")

    [check] = [check for check in outcome.json["checks"] if bucket.url in check["name"]]
    assert check["verdict"] == "good"
    assert check["found"].startswith("1 of 20 concurrent puts created, 1 of 20 replaced")
    [check] = [check for check in missing.json["checks"] if "s3://missing/a" in check["name"]]
    assert (check["verdict"], missing.code) == ("bad", 1)
    assert "the bucket does not exist" in check["found"]
