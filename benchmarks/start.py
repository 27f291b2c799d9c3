"""From nothing to a server for a test: how long `with millrace.testing.server()` takes until its body runs."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from .report import Bound, Quantity, Row, Target, Unit
from .session import Session

_LIMIT_S: Final = 0.5
_LIMIT_BYTES: Final = 1e6
_ROUNDS: Final = 9
# Prints the seconds that the `with` took, and the disk that the server's folder takes then: allocated blocks, as `du`
# counts them.
_PROGRAM: Final = """
import os, sys, time
from millrace.testing import server
started_s = time.perf_counter()
with server() as running:
    ready_s = time.perf_counter() - started_s
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(running.folder) for name in names]
    print(ready_s, sum(os.stat(path).st_blocks * 512 for path in paths), flush=True)
    sys.stdin.read()
"""


class _Start(NamedTuple):
    """One program: until it printed its line, with all of the processor it took by then and to its end."""

    elapsed_s: float
    processor_s: float
    printed: list[float]


def measure(session: Session) -> Iterator[Row]:
    """Yield the time until a server for a test is ready, and the disk that it takes."""
    rounds = max(3, session.count(_ROUNDS))
    _start(_PROGRAM, session)  # compiles what was never imported
    bare = [_start("print(0)", session) for _ in range(rounds)]
    starts = [_start(_PROGRAM, session) for _ in range(rounds)]
    ready_s = [each.printed[0] for each in starts]
    whole_s = statistics.median(each.elapsed_s for each in starts)
    bare_s = statistics.median(each.elapsed_s for each in bare)
    processor_s = statistics.median(each.processor_s for each in starts)
    yield Row(
        name="millrace.testing.server() is ready",
        figure=Quantity(statistics.median(ready_s), Unit.SECONDS),
        reference_name="0.5 s",
        reference=Quantity(_LIMIT_S, Unit.SECONDS),
        target=Target(Bound.AT_MOST, 1.0),
        conditions=(
            f"the `with`, in a program that has imported millrace.testing; median of {rounds}, fastest "
            f"{Quantity(min(ready_s), Unit.SECONDS)}. From the start of that program to there "
            f"{Quantity(whole_s, Unit.SECONDS)}, of which a bare Python takes {Quantity(bare_s, Unit.SECONDS)}; with "
            f"the end of both the processor was busy for {Quantity(processor_s, Unit.SECONDS)}"
        ),
    )
    yield Row(
        name="disk of a server for a test",
        figure=Quantity(statistics.median(each.printed[1] for each in starts), Unit.BYTES),
        reference_name="1 MB",
        reference=Quantity(_LIMIT_BYTES, Unit.BYTES),
        target=Target(Bound.AT_MOST, 1.0),
        conditions="allocated blocks of its folder, as du counts them, when it is ready",
    )


def _start(program: str, session: Session) -> _Start:
    # Bytecode is kept, as after any installation; a shell may have turned that off.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = os.times()
    started_s = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**environment, "TMPDIR": str(session.directory)},
    ) as child:  # fmt: skip
        assert child.stdout is not None
        printed = child.stdout.readline()
        elapsed_s = time.perf_counter() - started_s
        child.communicate()
    after = os.times()
    processor_s = after.children_user + after.children_system - before.children_user - before.children_system
    return _Start(elapsed_s, processor_s, [float(number) for number in printed.split()])
