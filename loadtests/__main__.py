"""`python -m loadtests`: run scenarios, print one table, leave HTML reports, fail on anything lost or out of order."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .report import as_table
from .run import OVERHEAD_S, RESULTS, SCENARIOS, LoadTestError, find_scenario, run_scenario, server_at
from .workload import Scenario, ScenarioError

# Command-line options that change one field of every scenario that is run.
_FIELDS: Final[dict[str, tuple[str, type]]] = {
    "seconds": ("duration_s", float),
    "segments": ("segments", int),
    "producers": ("producers.users", int),
    "rate": ("producers.rate_per_s", float),
    "event-size": ("producers.event_size", int),
    "keys": ("producers.keys", int),
    "events-per-append": ("producers.events_per_append", int),
    "outstanding": ("producers.outstanding", int),
    "tail-readers": ("tail_readers.users", int),
    "catch-up-readers": ("catch_up_readers.users", int),
}


def main() -> int:
    """Run the scenarios named, or all; 0 if all passed, 1 if not, 2 if there is nothing to run."""
    arguments = _parser().parse_args()
    changes = {
        path: value
        for name, (path, _) in _FIELDS.items()
        if (value := getattr(arguments, name.replace("-", "_"))) is not None
    }
    terminal = Console(stderr=True)
    names = arguments.scenarios or sorted(path.stem for path in SCENARIOS.glob("*.toml"))
    results = []
    try:
        scenarios = {path: Scenario.load(path).changed(changes) for path in map(find_scenario, names)}
        lifetime_s = sum(scenario.duration_s + OVERHEAD_S for scenario in scenarios.values())
        with (
            server_at(arguments.address, directory=arguments.directory, lifetime_s=lifetime_s) as address,
            _progress(terminal) as progress,
        ):
            for path, scenario in scenarios.items():
                row = progress.add_task(scenario.name, total=scenario.duration_s, said="starting")

                def show(said: Mapping[str, Any], row: Any = row) -> None:
                    progress.update(row, completed=said["elapsed_s"], said=_said(said))

                result = run_scenario(
                    path, address=address, changes=changes, results=arguments.results, on_progress=show
                )
                progress.update(
                    row, completed=scenario.duration_s, said="passed" if result.passed else "[red]failed[/]"
                )
                results.append(result)
    except (ScenarioError, LoadTestError) as error:
        terminal.print(f"error: {error}", style="red", markup=False)
        return 2 if isinstance(error, ScenarioError) else 1
    Console(width=None if sys.stdout.isatty() else 160).print(as_table(results))
    terminal.print(f"HTML reports: {arguments.results}/", highlight=False)
    return 0 if all(result.passed for result in results) else 1


def _said(progress: Mapping[str, Any]) -> str:
    errors = f", [red]{progress['errors']} errors[/]" if progress["errors"] else ""
    return (
        f"{progress['appended']:,} events durable, {progress['tailed']:,} at tail readers, "
        f"{progress['read_bytes'] / 1e6:,.0f} MB caught up{errors}"
    )


def _progress(terminal: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[said]}"),
        console=terminal,
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests", description="Load tests of a Millrace server.")
    known = ", ".join(sorted(path.stem for path in SCENARIOS.glob("*.toml")))
    parser.add_argument(
        "scenarios", nargs="*", metavar="SCENARIO", help=f"a TOML file, or one of {known} (default: all)"
    )
    parser.add_argument(
        "--address", default="", help="HOST:PORT of a running server (default: one in a temporary folder)"
    )
    # On a disk by convention, where /tmp may be memory, in which a sync costs nothing.
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="for that folder (%(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="for reports (%(default)s)")
    for name, (path, kind) in _FIELDS.items():
        parser.add_argument(f"--{name}", type=kind, help=f"instead of {path}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
