from pathlib import Path

import pytest

from millrace.client.testing import TestServer
from millrace.examples.bench.rows import Row
from tests.cli.conftest import Run


def test_a_ratio_needs_a_bare_figure() -> None:
    assert Row(name="x", value=3.0, unit="s", bare=2.0).ratio == 1.5
    assert Row(name="x", value=3.0, unit="s").ratio is None


@pytest.mark.slow
def test_a_running_server_is_measured_and_left_as_it_was(run: Run, running: TestServer, tmp_path: Path) -> None:
    outcome = run("bench", running.address, "--dir", tmp_path, "--seconds", 0.1, "--json")

    rows = {row["name"]: row for row in outcome.json["rows"]}
    assert outcome.code == 0
    assert len(rows) == 10
    assert all(row["value"] > 0 for row in rows.values())
    assert rows["append of 100 B, one at a time, p50"]["ratio"] > 0
    assert run("segment", "list", "bench/", "--json", "--address", running.address).json == []


@pytest.mark.slow
def test_without_an_address_a_server_is_started(run: Run, tmp_path: Path) -> None:
    outcome = run("bench", "--dir", tmp_path, "--seconds", 0.1)

    assert outcome.code == 0
    assert "events of 100 B, write_many" in outcome.out
    assert list(tmp_path.iterdir()) == []
