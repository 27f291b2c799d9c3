"""`millrace demo`: everything once, on recorded data, in under two minutes."""

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer
import uvloop
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millrace.cli.disk import percentile
from millrace.cli.figures import count_text, duration_text, size_text, time_text
from millrace.cli.inspect_folder import inspect_folder
from millrace.cli.output import console, is_terminal, make_table, print_made, print_note, print_table, print_text
from millrace.cli.verification import verify_folder
from millrace.client.client import Client, connect
from millrace.client.read.reader import Reader
from millrace.client.testing import TestServer, server
from millrace.model.cut import TAIL
from millrace.model.event import Event
from millrace.model.policy import ScalingPolicy, StreamConfig

from .data import Line, Reading, lines, readings
from .queries import demo_session, monthly_averages, what_is_missing, word_counts

TEMPERATURES: Final = "demo/temperatures"
TEXTS: Final = "demo/texts"
SEGMENTS: Final = 4
LIVE_S: Final = 8.0
"""How long a year of measurements takes."""
STEPS_PER_S: Final = 20


@dataclass(slots=True)
class _Sensor:
    """What the tail reader knows of a sensor."""

    count: int = 0
    low: float = float("inf")
    high: float = float("-inf")
    last: float = 0.0
    timestamp_us: int = 0

    def add(self, timestamp_us: int, temp_f: float) -> None:
        self.count += 1
        self.low, self.high = min(self.low, temp_f), max(self.high, temp_f)
        self.last, self.timestamp_us = temp_f, timestamp_us


def demo(
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Keep the data in this new folder, to look at afterwards.", show_default=False
        ),
    ] = None,
    with_spark: Annotated[bool, typer.Option("--spark/--no-spark", help="Run the Spark queries.")] = True,
) -> None:
    """Stream recorded temperatures, tail them live, query them with Spark, see where the bytes are.

    Starts a server of its own in a temporary folder, and needs no network. Takes about a minute.
    """
    if find_spec("vega_datasets") is None:
        raise typer.BadParameter("the recorded measurements are missing: pip install 'millrace[demo]'")
    if keep is not None and keep.exists():
        raise typer.BadParameter(f"{keep} exists; name a new folder", param_hint="--keep")
    started_s = time.monotonic()
    print_text(Text.assemble(("Millrace", "bold cyan"), ": durable streams for Python and Spark, all of it once"))
    with _folders(keep) as (data, scratch):
        with server(data) as running:
            _title(1, "A server", f"{running.address}, a process of its own, data in {data}")
            written = uvloop.run(_stream(running.address))
            text_count = uvloop.run(_write_texts(running.address))
            print_text(f"wrote {count_text(text_count, 'line')} of documentation to {TEXTS}, keyed by module")
            _query(running, scratch, missing=what_is_missing() if with_spark else "--no-spark was given")
        _title(4, "Where the bytes are", "the server has stopped; its folder, read offline")
        _show_files(data)
        _title(5, "Is it all there?", "every checksum, and every segment against chunks and log")
        _verify(data)
        _farewell(keep, written + text_count, time.monotonic() - started_s)


@contextmanager
def _folders(keep: Path | None) -> Iterator[tuple[Path, Path]]:
    scratch = Path(tempfile.mkdtemp(prefix="millrace-demo-"))
    data = scratch / "data" if keep is None else keep.absolute()
    try:
        data.mkdir(parents=True)
        yield data, scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _title(number: int, name: str, rest: str) -> None:
    print_text("")
    print_text(Text.assemble((f"{number}. {name}", "bold"), (f"  {rest}", "dim")))


# --- writing and tailing ---


async def _stream(address: str) -> int:
    """Write a year of measurements within seconds, with a tail reader beside it; return how many there were."""
    measured = readings()
    async with connect(address) as client:
        await client.create_stream(TEMPERATURES, StreamConfig(scaling=ScalingPolicy.fixed(SEGMENTS)))
        _title(
            2, "A year of measurements, live",
            f"{count_text(len(measured), 'hourly reading')} of two cities into {TEMPERATURES}, a tail reader beside it",
        )  # fmt: skip
        sensors: dict[str, _Sensor] = {}
        delays_s: list[float] = []
        sent_s: dict[tuple[str, int], float] = {}
        with _live() as show:
            async with client.reader(TEMPERATURES, start=TAIL) as reader:
                writing = asyncio.create_task(_write(client, measured, sent_s))
                received = 0
                while received < len(measured):
                    for event in await _next_or_failure(reader, writing):
                        reading = _reading_of(event)
                        sensors.setdefault(reading.sensor, _Sensor()).add(reading.timestamp_us, reading.temp_f)
                        delays_s.append(time.monotonic() - sent_s.pop((reading.sensor, reading.timestamp_us)))
                        received += 1
                    show(_sensor_table(sensors))
                await writing
    delay_s = percentile(sorted(delays_s), 50)
    print_text(Text(f"from write to disk to reader: {duration_text(delay_s)} (median, blocks of events)", style="dim"))
    return len(measured)


async def _next_or_failure(reader: Reader, writing: "asyncio.Task[None]") -> list[Event]:
    """Return the next events, or raise why none will come any more."""
    reading = asyncio.ensure_future(reader.next_events())
    await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
    if not reading.done() and writing.done():
        writing.result()
    return await reading


async def _write(client: Client, measured: list[Reading], sent_s: dict[tuple[str, int], float]) -> None:
    """Write the measurements evenly over the time of the show, each with its own timestamp, keyed by its sensor."""
    steps = round(LIVE_S * STEPS_PER_S)
    started_s = time.monotonic()
    async with client.writer(TEMPERATURES) as writer:
        for step in range(steps):
            for reading in measured[len(measured) * step // steps : len(measured) * (step + 1) // steps]:
                sent_s[reading.sensor, reading.timestamp_us] = time.monotonic()
                _ = writer.write(reading.value(), key=reading.sensor, timestamp_us=reading.timestamp_us)
            await asyncio.sleep(max(0.0, started_s + (step + 1) / STEPS_PER_S - time.monotonic()))


def _reading_of(event: Event) -> Reading:
    content = json.loads(event.value)
    return Reading(content["sensor"], event.timestamp_us or 0, content["temp_f"])


@contextmanager
def _live() -> Iterator[Callable[[Table], None]]:
    """Lend a function that shows a table in the place of the one before; in a pipe only the last is printed."""
    if is_terminal():
        with Live(console=console(), refresh_per_second=15) as live:
            yield live.update
        return
    shown: list[Table] = []
    yield lambda table: shown.__setitem__(slice(None), [table])
    for table in shown:
        print_made(table)


def _sensor_table(sensors: dict[str, _Sensor]) -> Table:
    rows = [
        (
            name,
            time_text(sensor.timestamp_us)[:16],
            f"{sensor.last:.1f}",
            f"{sensor.low:.1f}",
            f"{sensor.high:.1f}",
            sensor.count,
        )
        for name, sensor in sorted(sensors.items())
    ]
    columns = ("sensor", "time", "now F", "lowest F", "highest F", "readings")
    return make_table(columns, rows, right=columns[2:])


async def _write_texts(address: str) -> int:
    """Write the texts, all lines of a module as one block; return how many lines there were."""
    of_module: dict[str, list[bytes]] = {}
    found: list[Line] = await asyncio.to_thread(lambda: list(lines()))
    for line in found:
        of_module.setdefault(line.module, []).append(line.text.encode())
    async with connect(address) as client:
        await client.create_stream(TEXTS, StreamConfig(scaling=ScalingPolicy.fixed(SEGMENTS)))
        async with client.writer(TEXTS) as writer:
            for module, texts in of_module.items():
                _ = writer.write_many(texts, key=module)
    return len(found)


# --- Spark ---


def _query(running: TestServer, scratch: Path, *, missing: str) -> None:
    _title(3, "Spark", 'spark.readStream.format("millrace"), the queries of any Spark program')
    if missing:
        print_text(Text.assemble(("skipped: ", "yellow"), missing))
        return
    with ExitStack() as stack:
        try:
            with _waiting("starting Spark"):
                spark = stack.enter_context(demo_session(scratch))
            with _waiting("averages over windows of 28 days"):
                averages = monthly_averages(spark, address=running.address, stream=TEMPERATURES, folder=scratch)
            print_table(
                ("28 days from", "sensor", "lowest F", "mean F", "highest F", "readings"),
                [
                    (
                        window.start,
                        window.sensor,
                        f"{window.low:.1f}",
                        f"{window.mean:.1f}",
                        f"{window.high:.1f}",
                        window.count,
                    )
                    for window in averages
                ],
                right=("lowest F", "mean F", "highest F"),
            )
            with _waiting("counting words"):
                counts = word_counts(spark, address=running.address, stream=TEXTS, folder=scratch)
        except Exception:
            log = scratch / "spark.log"
            print_note(log.read_text()[-4000:] if log.exists() else "Spark wrote no log")
            raise
    print_text("the words that the authors of the standard library use most:")
    print_text("  " + ", ".join(f"{word} {count:,}" for word, count in counts))


@contextmanager
def _waiting(what: str) -> Iterator[None]:
    """Show that something is under way, and how long it took."""
    started_s = time.monotonic()
    if is_terminal():
        with console().status(what):
            yield
    else:
        yield
    print_text(Text(f"{what}: {duration_text(time.monotonic() - started_s)}", style="dim"))


# --- what is left ---


def _show_files(data: Path) -> None:
    report = inspect_folder(data, limit=0)
    for section in report.sections:
        if section.name == "segments":
            print_table(section.columns, section.rows)
    log_bytes = sum(row[1] for section in report.sections if section.name == "log_files" for row in section.rows)
    chunks = [row for section in report.sections if section.name == "chunks" for row in section.rows]
    print_text(f"tier 1, the log: {size_text(log_bytes)} preallocated, {report.facts.get('log', '')}")
    print_text(f"tier 2, forever: {count_text(len(chunks), 'chunk')}, {size_text(sum(row[1] for row in chunks))}:")
    for row in chunks:
        print_text(f"  {row[0]}")


def _verify(data: Path) -> None:
    result = verify_folder(data)
    if result.findings:
        for finding in result.findings:
            print_text(Text(f"{finding.file} at {finding.offset}: {finding.what}", style="bold red"))
        raise typer.Exit(1)
    print_text(
        f"{count_text(result.segments, 'segment')}, {count_text(result.batches, 'batch', 'batches')} and "
        f"{count_text(result.chunks, 'chunk')}: everything is as it was written"
    )


def _farewell(keep: Path | None, count: int, elapsed_s: float) -> None:
    print_text("")
    print_text(
        Text.assemble((f"{count_text(count, 'event')}, {duration_text(elapsed_s)}. ", "bold green"), "Try next:")
    )
    folder = str(keep) if keep is not None else "millrace-data"
    rows = [
        (
            f"millrace serve --data-dir {folder}",
            "a server of your own" if keep is None else "the same data, served again",
        ),
        ("millrace stream create app/log --segments 2", "a stream, in another terminal"),
        ("cat /etc/services | millrace write app/log", "each line an event"),
        ("millrace tail app/log --from head", "and out again, as they come"),
        (f"millrace inspect {folder}", "where they are"),
        ("millrace doctor", "what your disk really does"),
    ]
    grid = Table.grid(padding=(0, 3, 0, 2))
    grid.add_column(style="cyan" if is_terminal() else "", no_wrap=True)
    grid.add_column()
    for command, meaning in rows:
        grid.add_row(command, meaning)
    print_made(grid)
    if keep is None:
        print_note("the demo's own data is deleted; --keep DIR leaves it for you to look at")
