"""`millrace demo`: the best of it on recorded data, in about a minute."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import uvloop
from rich.text import Text

from millrace.cli.connecting import JsonOption
from millrace.cli.output import picked, print_error, print_json, print_note
from millrace.client.testing import SETTINGS_SMALL, server
from millrace.examples.load import eager_settings
from millrace.examples.running import Program, ended_by_sigterm
from millrace.model.errors import MissingExtraError
from millrace.model.extras import DISTRIBUTION
from millrace.model.figures import count_text, duration_text, size_text
from millrace.server.offline.disk import percentile
from millrace.server.offline.findings import Finding, Verification
from millrace.server.offline.inspect_folder import inspect_folder
from millrace.server.offline.verification import verify

from .data import readings
from .proof import Proof
from .queries import CELSIUS, what_is_missing
from .run import SQL, DemoError, Fault, Run, Told
from .screen import Screen

USUAL_S: Final = 30.0
"""So the load is high while Spark starts, and when both are killed, on two cores that do nothing else."""


def demo(
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Keep the data in this new folder, to look at afterwards.", show_default=False
        ),
    ] = None,
    with_spark: Annotated[bool, typer.Option("--spark/--no-spark", help="Run the Spark query.")] = True,
    seconds: Annotated[float, typer.Option(min=1.0, help="How long the load lasts.")] = USUAL_S,
    fault: Annotated[
        Fault | None,
        typer.Option(
            help="Before the proof lose events, or write one again, to see that the proof finds it.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write recorded temperatures, follow them live, query them with Spark, kill both, and check every event.

    Starts a server of its own in a temporary folder, and needs no network. Takes about a minute.
    """
    if find_spec("vega_datasets") is None:
        raise MissingExtraError("vega_datasets", f"{DISTRIBUTION}[demo]")
    if keep is not None and keep.exists():
        raise typer.BadParameter(f"{keep} exists; name a new folder", param_hint="--keep")
    screen = Screen(is_quiet=as_json)
    screen.line(Text.assemble(("Millrace", "bold cyan"), ": durable streams for Python and Spark, the best of it"))
    missing = what_is_missing() if with_spark else "--no-spark was given"
    try:
        with ended_by_sigterm(), _folders(keep) as (data, scratch):
            told = _run(data, scratch, screen=screen, has_spark=not missing, duration_s=seconds, fault=fault)
            _show(told, screen=screen, missing=missing)
            places = _places(data)
            findings = Verification.of(verify(data)).findings
    except DemoError as error:
        print_error(str(error))
        raise typer.Exit(1) from None
    is_proved = all(proof.holds for proof in told.proofs) and not findings
    if as_json:
        print_json(_json(told, screen=screen, missing=missing, findings=findings, is_proved=is_proved))
    else:
        _show_places(places, screen=screen)
        _say_proved(findings, screen=screen, is_proved=is_proved)
        _farewell(keep, screen=screen)
    if not is_proved:
        raise typer.Exit(1)


@contextmanager
def _folders(keep: Path | None) -> Iterator[tuple[Path, Path]]:
    scratch = Path(tempfile.mkdtemp(prefix="millrace-demo-"))
    data = scratch / "data" if keep is None else keep.absolute()
    try:
        data.mkdir(parents=True)
        yield data, scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(data: Path, scratch: Path, *, screen: Screen, has_spark: bool, duration_s: float, fault: Fault | None) -> Told:
    with ExitStack() as stack:
        running = stack.enter_context(server(data, settings=SETTINGS_SMALL | eager_settings(duration_s)))
        screen.title("1. A server", f"{running.address}, a process of its own, data in {data}")
        driver = None
        if has_spark:
            arguments = (f"{__package__}.queries", running.address, str(scratch))
            driver = Program(*arguments, log=scratch / "spark.log")
            stack.push(driver)
        return uvloop.run(Run(running, driver, readings(), screen=screen, duration_s=duration_s).run(fault=fault))


# --- what is shown at the end ---


def _show(told: Told, *, screen: Screen, missing: str) -> None:
    delays_s = sorted(told.delays_s)
    median, high = (duration_text(percentile(delays_s, part)) for part in (50, 99))
    screen.line(
        Text(f"from write, over the disk, to the live tail: {median} (median), {high} (99 of 100)", style="dim")
    )
    screen.title("3. SQL over the past", f"what the query of Spark has written to {CELSIUS} by now")
    if missing:
        screen.line(Text.assemble(("skipped: ", "yellow"), missing))
    elif told.answer:
        screen.line(Text(SQL, style="dim"))
        screen.table(list(told.answer[0]), [list(row.values()) for row in told.answer])
    screen.title("4. The proof", "each acknowledged event, and each result beside what plain Python makes of it")
    columns = ("stream", "expected", "there once", "missing", "too many", "out of order")
    counts = [(each.expected, each.once, each.missing, each.extra, each.misplaced) for each in told.proofs]
    rows = [(each.stream, *map("{:,}".format, of)) for each, of in zip(told.proofs, counts, strict=True)]
    screen.table(columns, rows, right=columns[1:])


def _places(data: Path) -> list[str]:
    """Return where the bytes are, a line each."""
    report = inspect_folder(data, limit=0)
    rows = {section.name: section.rows for section in report.sections}
    chunks = rows.get("chunks", [])
    log_bytes = sum(row[1] for row in rows.get("log_files", []))
    example = f", such as {chunks[0][0]}" if chunks else ""
    return [
        f"tier 1, the log: {size_text(log_bytes)} preallocated, {report.facts.get('log', '')}",
        f"tier 2, forever: {count_text(len(chunks), 'chunk')}, {size_text(sum(row[1] for row in chunks))}{example}",
    ]


def _show_places(places: Sequence[str], *, screen: Screen) -> None:
    screen.title("5. Where the bytes are", "the server has stopped; its folder, read offline")
    for line in places:
        screen.line(line)


def _say_proved(findings: Sequence[Finding], *, screen: Screen, is_proved: bool) -> None:
    for finding in findings:
        screen.line(Text(f"{finding.file} at {finding.offset}: {finding.what}", style="bold red"))
    if not findings:
        screen.line("checked every checksum, and every segment against chunks and log: no damage found")
    screen.line()
    if is_proved:
        screen.line(
            Text("Nothing is missing, nothing is there twice, and each key is in its order.", style="bold green")
        )
    else:
        screen.line(Text("The proof FAILED: see the table.", style="bold red"))


def _json(told: Told, *, screen: Screen, missing: str, findings: Sequence[Finding], is_proved: bool) -> dict[str, Any]:
    delays_s = sorted(told.delays_s)
    return {
        "is_proved": is_proved,
        "seconds": round(screen.elapsed_s, 1),
        "spark_skipped": missing,
        "splits": told.splits,
        "merges": told.merges,
        "latency_s": {"median": percentile(delays_s, 50), "p99": percentile(delays_s, 99)},
        "kills": [picked(kill, "process", "silence_s") for kill in told.kills],
        "answer": told.answer,
        "proofs": [_proof_json(proof) for proof in told.proofs],
        "findings": [f"{finding.file}: {finding.what}" for finding in findings],
    }


def _proof_json(proof: Proof) -> dict[str, Any]:
    return picked(proof, "stream", "expected", "once", "missing", "extra", "misplaced", "holds")


def _farewell(keep: Path | None, *, screen: Screen) -> None:
    screen.line(Text.assemble(f"That took {duration_text(screen.elapsed_s)}. ", "Try next:"))
    folder = str(keep) if keep is not None else "millrace-data"
    screen.commands(
        [
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
    )
    if keep is None:
        print_note("the demo's own data is deleted; --keep DIR leaves it for you to look at")
