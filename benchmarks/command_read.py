"""What `millrace read` prints, as text and as JSON, beside the batches that it is made of, and `cat` of the lines."""

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from .child import measured
from .report import Quantity, Row, SyncRate, Unit
from .rounds import interleaved, median_of, spread
from .server import millrace_server
from .session import Session
from .stream_client import ClientResult, ClientWork

_EVENTS: Final = 2_000_000
_LINE: Final = (
    '{{"order": {:08}, "customer": {:04}, "amount": 12.50, "note": "as bright as day, as dark as the night"}}\n'
)
_STREAM: Final = "bench/lines"
_PROGRAM: Final = "import sys; from millrace.cli.main import main; sys.exit(main())"
_MILLRACE: Final = shlex.join((sys.executable, "-c", _PROGRAM))
_FORMS: Final = {"text": (), "--keys": ("--keys",), "--json": ("--json",)}
_LIFETIME_S: Final = 300.0


def measure(session: Session) -> Iterator[Row]:
    """Yield a row for each form of lines, and one for `cat`."""
    count = session.count(_EVENTS)
    with tempfile.TemporaryDirectory(dir=session.directory) as name, millrace_server(session.directory) as server:
        lines = Path(name) / "lines"
        with lines.open("w") as file:
            file.writelines(_LINE.format(number, number % 1000) for number in range(count))
        run = partial(_timed, {"MILLRACE_ADDRESS": server.address})
        run(f"{_MILLRACE} write {_STREAM} --create --key bench <{lines}")
        server.settle()
        work = ClientWork(what="arrow_batches", address=server.address, stream=_STREAM)
        measured("stream_client", work, ClientResult)  # once before, for the page cache
        read = f"{_MILLRACE} read {_STREAM}"
        runs: dict[str, Callable[[], float]] = {
            "batches": lambda: measured("stream_client", work, ClientResult).elapsed_s,
            "start": partial(run, f"{read} --from tail"),
            "cat": partial(run, f"cat {lines} | cat"),
            **{form: partial(run, " ".join((read, *options))) for form, options in _FORMS.items()},
        }
        took_s = interleaved(runs)
    start_s = median_of(took_s.pop("start"), float)
    rates = {what: Quantity(count / median_of(each, float), Unit.EVENTS_PER_SECOND) for what, each in took_s.items()}
    for form in _FORMS:
        per_s = count / (median_of(took_s[form], float) - start_s)
        yield Row(
            name=f"events of 100 B out of `millrace read`, {form}",
            figure=Quantity(per_s, Unit.EVENTS_PER_SECOND),
            reference_name="arrow_batches() of the same stream",
            reference=rates["batches"],
            syncs=SyncRate(0.0, "none made"),
            conditions=(
                f"{count:,} events, without the start of the command, {Quantity(start_s, Unit.SECONDS)}; with it "
                f"{spread(took_s[form], float)}"
            ),
        )
    yield Row(
        name="the same lines out of `cat`",
        figure=rates["cat"],
        syncs=SyncRate(0.0, "none made"),
        conditions="through a pipe, from the page cache",
    )


def _timed(environment: Mapping[str, str], line: str) -> float:
    """Run a line of the shell and return the seconds that it took; what it prints goes nowhere."""
    begin_s = time.perf_counter()
    subprocess.run(
        ["sh", "-c", line],
        env={**os.environ, **environment},
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=_LIFETIME_S,
    )
    return time.perf_counter() - begin_s
