"""`python -m benchmarks`: measure everything, or the sections named, and print one table.

A section is a module with `measure(session)`, which yields rows; it is listed in `SECTIONS` below. Floors and rivals
come first; later sections ask the session for them and so compare with figures of the same run.
"""

import argparse
import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rich.console import Console

from . import (
    append_latency,
    append_rate,
    catch_up,
    command_read,
    event_read,
    event_write,
    failover,
    floors,
    object_log,
    recovery,
    spark_kafka,
    spark_read,
    spark_sink,
    stalled_disk,
    start,
    store_read,
    tail_latency,
    transactions,
)
from .report import Report, Row, Section, as_json, as_markdown, as_table
from .rivals import postgres, rabbitmq_streams, redis_streams, s2_lite
from .session import AbsentError, Session, machine

SECTIONS: Final[dict[str, Callable[[Session], Iterator[Row]]]] = {
    "floors": floors.measure,
    "redis": redis_streams.measure,
    "postgres": postgres.measure,
    "rabbitmq": rabbitmq_streams.measure,
    "append-latency": append_latency.measure,
    "append-rate": append_rate.measure,
    "stalled-disk": stalled_disk.measure,
    "object-log": object_log.measure,
    "s2-lite": s2_lite.measure,
    "failover": failover.measure,
    "event-write": event_write.measure,
    "transactions": transactions.measure,
    "tail-latency": tail_latency.measure,
    "catch-up": catch_up.measure,
    "store-read": store_read.measure,
    "event-read": event_read.measure,
    "command-read": command_read.measure,
    "spark-read": spark_read.measure,
    "spark-kafka": spark_kafka.measure,
    "spark-sink": spark_sink.measure,
    "recovery": recovery.measure,
    "start": start.measure,
}


def main() -> int:
    """Run the benchmarks; 1 when a section failed (not when a target was missed: that is what the table is for)."""
    parser = _parser()
    arguments = parser.parse_args()
    names = arguments.sections or list(SECTIONS)
    if unknown := [name for name in names if name not in SECTIONS]:
        parser.error(f"unknown section {unknown[0]!r}: choose from {', '.join(SECTIONS)}")
    progress = Console(stderr=True)
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="millrace-bench-") as folder:
        directory = Path(folder)
        # A rival that refuses to run as root runs as its own user and has to get here.
        directory.chmod(0o755)
        conditions = machine(directory)
        session = Session(directory, effort=0.2 if arguments.quick else 1.0)
        sections = tuple(_run(name, session, progress) for name in names)
        conditions["load after"] = machine(directory)["load before"]
    report = Report(conditions, sections)
    if arguments.json:
        print(json.dumps(as_json(report), indent=2))
    elif arguments.markdown:
        print(as_markdown(report))
    else:
        Console(width=None if sys.stdout.isatty() else 200).print(as_table(report))
    return 1 if any(section.failed for section in sections) else 0


def _run(name: str, session: Session, progress: Console) -> Section:
    rows: list[Row] = []
    skipped = failed = ""
    with progress.status(f"{name} ..."):
        try:
            for row in SECTIONS[name](session):
                rows.append(row)
                progress.print(f"{name}: {row.name}: {row.figure}", highlight=False)
        except AbsentError as error:
            skipped = str(error)
        except Exception as error:  # noqa: BLE001 - one section that fails must not take the others' figures with it
            failed = f"{type(error).__name__}: {error}"
            progress.print(traceback.format_exc(), markup=False, highlight=False)
    return Section(name, tuple(rows), skipped, failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Millrace, floors and rivals.")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="a fifth of the work: to see that everything runs")
    # /var/tmp is on a disk by convention, where /tmp may be memory, in which a sync costs nothing.
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="on the disk to measure (%(default)s)")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print JSON instead of a table")
    output.add_argument("--markdown", action="store_true", help="print Markdown instead of a table")
    return parser


if __name__ == "__main__":
    sys.exit(main())
