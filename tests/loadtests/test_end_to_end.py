"""One short run of everything, in child processes: locust patches the process it is imported in."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_short_run_passes_and_leaves_a_report(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "loadtests", "steady", "--seconds", "2", "--producers", "2", "--rate", "100"]
    arguments += ["--catch-up-readers", "1", "--directory", str(tmp_path), "--results", str(tmp_path)]
    finished = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)

    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "steady passed" in finished.stdout
    result = json.loads((tmp_path / "steady.json").read_text())
    assert result["appended_events"] > 100
    assert result["tail_events"] == 2 * result["appended_events"]
    assert result["read_events"] > 0
    assert "<html" in (tmp_path / "steady.html").read_text()


@pytest.mark.slow
def test_a_run_against_nothing_fails(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "loadtests", "steady", "--seconds", "1", "--results", str(tmp_path)]
    arguments += ["--address", "127.0.0.1:1"]
    finished = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)

    assert finished.returncode == 1
    assert "nothing was appended" in finished.stdout


def test_an_unknown_scenario_is_wrong_usage() -> None:
    arguments = [sys.executable, "-m", "loadtests", "nothing-like-it"]
    finished = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)

    assert finished.returncode == 2
    assert "steady" in finished.stderr
