"""From nothing to a server for a test: a Python that imports Millrace and enters `millrace.testing.server()`."""

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
# Prints the disk that the server's folder takes once it is ready: allocated blocks, as `du` counts them.
_PROGRAM: Final = """
import os, sys, millrace.testing
with millrace.testing.server() as server:
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(server.folder) for name in names]
    print(sum(os.stat(path).st_blocks * 512 for path in paths), flush=True)
    sys.stdin.read()
"""


class _Start(NamedTuple):
    """One start: until the program printed its line, with all of the processor it took by then and to its end."""

    elapsed_s: float
    processor_s: float
    printed: str


def measure(session: Session) -> Iterator[Row]:
    """Yield the time until a server for a test is ready, and the disk that it takes."""
    rounds = max(3, session.count(_ROUNDS))
    _start(_PROGRAM, session)  # compiles what was never imported
    bare = [_start("print(0)", session) for _ in range(rounds)]
    starts = [_start(_PROGRAM, session) for _ in range(rounds)]
    bare_s = statistics.median(each.elapsed_s for each in bare)
    processor_s = statistics.median(each.processor_s for each in starts)
    yield Row(
        name="millrace.testing.server() is ready",
        figure=Quantity(statistics.median(each.elapsed_s for each in starts), Unit.SECONDS),
        reference_name="0.5 s",
        reference=Quantity(_LIMIT_S, Unit.SECONDS),
        target=Target(Bound.AT_MOST, 1.0),
        conditions=(
            f"a bare Python takes {Quantity(bare_s, Unit.SECONDS)}; the processor was busy for "
            f"{Quantity(processor_s, Unit.SECONDS)}, with the end of the server; median of {rounds}, "
            f"fastest {Quantity(min(each.elapsed_s for each in starts), Unit.SECONDS)}"
        ),
    )
    yield Row(
        name="disk of a server for a test",
        figure=Quantity(statistics.median(int(each.printed) for each in starts), Unit.BYTES),
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
    return _Start(elapsed_s, processor_s, printed)
