"""The output of the demo: lines that stay, and on a terminal a picture that changes in place below them."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from millrace.cli.history_picture import draw_history
from millrace.cli.output import console, is_terminal, make_table, print_made, print_table, print_text
from millrace.model.lineage import Epoch

WIDTH_MAX: Final = 100
NOTE_WIDTH: Final = 32
"""Columns beside the key space, for the time and what is said of a scale."""
REFRESHES_PER_S: Final = 4


class Screen:
    """Shows the demo; a quiet one shows nothing."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._live: Live | None = None
        self._started_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._started_s

    def line(self, text: str | Text = "") -> None:
        """Print a line; above what changes in place."""
        if not self._is_quiet:
            print_text(text)

    def title(self, name: str, rest: str) -> None:
        """Begin a part."""
        self.line()
        self.line(Text.assemble((name, "bold"), (f"  {rest}", "dim")))

    def moment(self, text: str, *, style: str = "") -> None:
        """Print what has happened, and when."""
        self.line(Text.assemble((f"{self.elapsed_s:5.1f} s  ", "dim"), (text, style)))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Sequence[str] = ()) -> None:
        """Print a table."""
        if not self._is_quiet:
            print_table(columns, rows, right=right)

    def picture(self, epochs: Sequence[Epoch]) -> None:
        """Print the segments of a stream over time."""
        for line in _picture(epochs, end_text="end"):
            self.line(line)

    def commands(self, rows: Sequence[tuple[str, str]]) -> None:
        """Print commands and what they do."""
        grid = Table.grid(padding=(0, 3, 0, 2))
        grid.add_column(style="cyan" if is_terminal() else "", no_wrap=True)
        grid.add_column()
        for command, meaning in rows:
            grid.add_row(command, meaning)
        if not self._is_quiet:
            print_made(grid)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Let `frame` show something in place, on a terminal, for the length of a block; it leaves no trace."""
        if self._is_quiet or not is_terminal():
            yield
            return
        with Live(console=console(), refresh_per_second=REFRESHES_PER_S, transient=True) as self._live:
            try:
                yield
            finally:
                self._live = None

    @property
    def is_changing(self) -> bool:
        """Whether a frame would be seen."""
        return self._live is not None

    def frame(self, bars: "Bars", epochs: Sequence[Epoch], newest: Sequence[Sequence[str]]) -> None:
        """Show how far everything is, the segments up to now, and the newest events."""
        if self._live is None:
            return
        tailed = make_table(("live tail", "series", "F", "from write to read"), newest, right=("F",))
        # As many lines of the picture as fit, the newest ones.
        room = max(4, self._live.console.height - len(bars.names) - len(newest) - 6)
        lines = _picture(epochs)
        ruler, rest = lines[:1], lines[1:]
        self._live.update(Group(bars.progress, *map(Text, ruler + rest[-room:]), tailed))


class Bars:
    """A bar for each thing that is counted.

    Args:
        names: of the bars, from the top.
        total: where each of them ends.
    """

    def __init__(self, names: Sequence[str], *, total: int) -> None:
        self.names = names
        self.progress = Progress(TextColumn("{task.description}"), BarColumn(bar_width=40), MofNCompleteColumn())
        self._tasks = [self.progress.add_task(name, total=total) for name in names]

    def move(self, counts: Sequence[int]) -> None:
        """Move each bar to its count."""
        for task, count in zip(self._tasks, counts, strict=True):
            self.progress.update(task, completed=count)


def _picture(epochs: Sequence[Epoch], *, end_text: str = "now") -> list[str]:
    if not epochs:
        return []
    # The clock of the server timed the epochs; ours may be slow.
    end_us = max(time.time_ns() // 1000, *(epoch.started_us for epoch in epochs), 0)
    target = console()
    return draw_history(
        epochs,
        end_us=end_us,
        end_text=end_text,
        width=min(target.width if target.is_terminal else WIDTH_MAX, WIDTH_MAX) - NOTE_WIDTH,
        height=2 * len(epochs),
        ascii_only=target.options.ascii_only,
    )
