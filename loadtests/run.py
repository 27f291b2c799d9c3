"""Runs scenarios one after another, each in a locust of its own, against a server of its own or one that is there."""

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import Child, running
from benchmarks.server import millrace_server

from .accounts import Result
from .workload import Scenario, ScenarioError

SCENARIOS: Final = Path(__file__).parent / "scenarios"
RESULTS: Final = Path(__file__).parent / "results"
_USERS: Final = Path(__file__).parent / "users.py"
# Beside the time of the scenario: starting, spawning, waiting for the last events.
OVERHEAD_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 45.0
_POLL_S: Final = 0.2


class LoadTestError(Exception):
    """Locust did not get as far as a result; the text holds the end of what it said."""


def find_scenario(name: str) -> Path:
    """Return the file of a scenario: a name of ours, or a path.

    Raises:
        ScenarioError: there is none.
    """
    path = Path(name) if name.endswith(".toml") else SCENARIOS / f"{name}.toml"
    if not path.exists():
        known = ", ".join(sorted(found.stem for found in SCENARIOS.glob("*.toml")))
        raise ScenarioError(f"{name} is no scenario; there are {known}")
    return path


@contextlib.contextmanager
def server_at(address: str, *, directory: Path, lifetime_s: float) -> Iterator[str]:
    """Return the address, or that of a new server in a temporary folder if it is empty."""
    if address:
        yield address
        return
    with millrace_server(directory, lifetime_s=lifetime_s) as server:
        yield server.address


def run_scenario(
    path: Path,
    *,
    address: str,
    changes: Mapping[str, Any],
    results: Path,
    on_progress: Callable[[Mapping[str, float]], None],
) -> Result:
    """Run one scenario and return its result; its HTML report and locust's log are left in `results`.

    Raises:
        ScenarioError: the scenario makes no sense.
        LoadTestError: there is no result.
    """
    scenario = Scenario.load(path).changed(changes)
    results.mkdir(parents=True, exist_ok=True)
    result_path = results / f"{scenario.name}.json"
    result_path.unlink(missing_ok=True)
    arguments = [sys.executable, "-m", "locust", "--locustfile", str(_USERS), "--headless", "--only-summary"]
    arguments += ["--users", str(scenario.users), "--spawn-rate", str(max(scenario.users, 1))]
    arguments += ["--run-time", f"{math.ceil(scenario.duration_s)}s", "--stop-timeout", f"{_STOP_TIMEOUT_S:g}"]
    arguments += ["--html", str(results / f"{scenario.name}.html"), "--address", address, "--scenario", str(path)]
    arguments += ["--changes", json.dumps(changes), "--result", str(result_path)]
    log = results / f"{scenario.name}.log"
    with running(arguments, output=log, lifetime_s=scenario.duration_s + OVERHEAD_S) as child:
        _follow(child, on_progress)
    if not result_path.exists():
        raise LoadTestError(f"{scenario.name}: locust ended without a result: {child.last_output()}")
    return Result.from_json(json.loads(result_path.read_text(encoding="utf-8")))


def _follow(child: Child, on_progress: Callable[[Mapping[str, float]], None]) -> None:
    """Hand over what locust's process says of its progress until it ends."""
    with child.output.open(encoding="utf-8", errors="replace") as output:
        rest = ""
        while child.process.poll() is None:
            rest += output.read()
            *lines, rest = rest.split("\n")
            for line in lines:
                if line.startswith('{"progress"'):
                    on_progress(json.loads(line)["progress"])
            time.sleep(_POLL_S)
