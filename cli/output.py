"""Output of the commands: tables and JSON on standard output, everything else on standard error.

Colour, boxes and progress bars appear on a terminal only. In a pipe a table is plain columns of full width, and nothing
is cut. Only this module prints.
"""

import errno
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from millrace.client.waiting import WaitInfo
from millrace.model.figures import duration_text

_FOLDED_WIDTH_MIN: Final = 12
"""Minimum width of a folded text column on a terminal."""
_PIPE_WIDTH: Final = 10_000
"""Width of a pipe: wide enough that no line is broken or cut."""


class OutputClosedError(Exception):
    """Standard output was closed, as by `| head`: there is nothing left to do."""


class _Console(Console):
    """A console that leaves a closed pipe to its caller; rich would end the program with code 1."""

    def on_broken_pipe(self) -> None:
        """Re-raise the write error; if standard error is closed, print nothing."""
        if not self.stderr:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        self.quiet = True
        discard(sys.stderr)


@contextmanager
def closing_output() -> Iterator[None]:
    """Flush standard output after the body.

    Raises:
        OutputClosedError: it was closed.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
        raise OutputClosedError from None


def discard(stream: TextIO) -> None:
    """Drop the buffer of a closed pipe or terminal: otherwise the program would fail with it at exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def console(*, stderr: bool = False) -> Console:
    """Return a console on the current standard output or standard error."""
    made = _Console(stderr=stderr)
    return made if made.is_terminal else _Console(stderr=stderr, width=_PIPE_WIDTH)


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return console().is_terminal


def print_text(text: str | Text) -> None:
    """Print a line unchanged; only a `Text` has style."""
    console().print(text, markup=False, highlight=False, soft_wrap=True)


def print_note(text: str) -> None:
    """Print a note beside the result, on standard error."""
    _print_beside(Text(text, style="dim"))


def print_done(text: str) -> None:
    """Print a success message on standard error: standard output has results only."""
    _print_beside(Text.assemble(("done ", "green"), text))


def print_waiting(waiting: WaitInfo | None) -> None:
    """Print that the command waits for the server, or with None that the wait is over."""
    print_note("waiting is over" if waiting is None else f"waiting for the server, {waiting}")


def print_error(message: str, *, hint: str = "") -> None:
    """Print an error and a hint."""
    _print_beside(Text.assemble(("error: ", "bold red"), message))
    if hint:
        print_note(f"       {hint}")


def print_json(value: Any) -> None:
    """Print one JSON document, indented."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_json_line(value: Any) -> None:
    """Print one JSON document in one line, for many of them."""
    sys.stdout.write(json.dumps(value, separators=(",", ":"), ensure_ascii=False) + "\n")


def picked(record: object, *names: str) -> dict[str, Any]:
    """Return the public attributes of a record by name, to be printed as JSON."""
    return {name: getattr(record, name) for name in names}


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "", right: Sequence[str] = ()
) -> None:
    """Print a table. Numbers, and the columns in `right`, are right-aligned."""
    print_made(make_table(columns, rows, title=title, right=right))


def make_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "", right: Sequence[str] = ()
) -> Table:
    """Return a table to be printed, or shown live.

    On a terminal that is too narrow for it, each row becomes a block: a line for each column, and none is cut.
    """
    values = [list(row) for row in rows]
    content = [[value if isinstance(value, Text) else _cell(value) for value in row] for row in values]
    target = console()
    table = Table(
        title=escape(title) or None,
        title_justify="left",
        title_style="bold" if target.is_terminal else "",
        box=box.SIMPLE_HEAD if target.is_terminal else None,
        pad_edge=target.is_terminal,
        padding=(0, 1) if target.is_terminal else (0, 2, 0, 0),
        header_style="cyan" if target.is_terminal else "",
    )
    for index, column in enumerate(columns):
        to_right = column in right or _are_numbers([row[index] for row in values])
        table.add_column(
            column, justify="right" if to_right else "left", no_wrap=to_right or not target.is_terminal, overflow="fold"
        )
    if target.is_terminal and _narrowest(table, content) > target.width:
        return _blocks(columns, content, title=title)
    for row in content:
        table.add_row(*(value if isinstance(value, Text) else escape(value) for value in row))
    return table


def _are_numbers(values: Sequence[Any]) -> bool:
    """Return whether all values are numbers or empty."""
    given = [value for value in values if value not in ("", None)]
    return bool(given) and all(isinstance(value, int | float) for value in given)


def _narrowest(table: Table, content: Sequence[Sequence[str | Text]]) -> int:
    """Return the minimum width of a table: right-aligned columns are not broken."""
    width = 2 + 3 * len(table.columns) - 1  # the edges, the padding of each column, and the separators
    for index, column in enumerate(table.columns):
        longest = max((cell_len(str(cell)) for cell in (column.header, *(row[index] for row in content))), default=0)
        width += longest if column.no_wrap else min(longest, _FOLDED_WIDTH_MIN)
    return width


def _blocks(columns: Sequence[str], content: Sequence[Sequence[str | Text]], *, title: str) -> Table:
    """Return the rows one below the other, each as names with values."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.title, grid.title_justify, grid.title_style = escape(title) or None, "left", "bold"
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for number, row in enumerate(content):
        if number:
            grid.add_row("", "")
        for column, value in zip(columns, row, strict=True):
            grid.add_row(escape(column), value if isinstance(value, Text) else escape(value))
    return grid


def print_facts(facts: dict[str, Any], *, title: str = "") -> None:
    """Print names with values, one a line."""
    if title:
        print_text(Text(title, style="bold"))
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="cyan" if is_terminal() else "", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        grid.add_row(escape(name), value if isinstance(value, Text) else escape(_cell(value)))
    print_made(grid)


def print_made(table: Table) -> None:
    """Print a finished table."""
    target = console()
    if target.is_terminal:
        target.print(table)
        return
    with target.capture() as capture:
        target.print(table)
    # Columns are padded to the right, which is useless in a pipe.
    for line in capture.get().splitlines():
        print(line.rstrip())


UpdateBar = Callable[..., None]
"""Moves a progress bar by `advance`, or changes its `description`: a `ProgressBar`, as most callers need it."""


class ProgressBar:
    """A progress bar on standard error; does nothing if that is not a terminal. Created by `progress`."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar = bar
        self._task = task

    def __call__(self, **changes: Any) -> None:
        """Move the bar by `advance`, or change its `description`."""
        self._bar.update(self._task, **changes)

    def show_waiting(self, waiting: WaitInfo | None) -> None:
        """Show beside the bar why and how long the client waits; without a bar, print a line."""
        if self._bar.disable:
            print_waiting(waiting)
        else:
            self(waiting=waiting)


class _WaitingColumn(ProgressColumn):
    """The reason and the duration of the wait; empty without one."""

    def render(self, task: Task) -> Text:
        waiting: WaitInfo | None = task.fields.get("waiting")
        if waiting is None:
            return Text("")
        return Text(f"waiting {duration_text(time.monotonic() - waiting.since_s)}: {waiting.reason}", style="yellow")


@contextmanager
def progress(
    description: str, *, total: float | None, in_bytes: bool = False, is_shown: bool = True
) -> Iterator[ProgressBar]:
    """Show a progress bar on standard error while the body runs, if that is a terminal; it is removed at the end."""
    target = console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        DownloadColumn(binary_units=True) if in_bytes else MofNCompleteColumn(),
        TimeElapsedColumn(),
        _WaitingColumn(),
        console=target,
        transient=True,
        disable=not (is_shown and target.is_terminal),
    )
    with bar:
        yield ProgressBar(bar, bar.add_task(description, total=total))


def _print_beside(text: Text) -> None:
    console(stderr=True).print(text, highlight=False, soft_wrap=True)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, bytes):
        return value.hex()
    return str(value)
