"""HTML tables for notebooks, for `_repr_html_`. All text is escaped, because names are user input."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from html import escape

from .key_range import KEY_SPACE, KeyRange
from .quantities import UNIX_EPOCH


def html_table(caption: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; each cell is the `str` of a value."""
    lines = [f"<caption>{escape(caption)}</caption>", _row("th", header), *(_row("td", row) for row in rows)]
    return "\n".join(["<table>", *lines, "</table>"])


def shown_time(unix_us: int) -> str:
    """Format a time to the second, in UTC; times outside of the calendar as a number."""
    try:
        return f"{UNIX_EPOCH + timedelta(microseconds=unix_us):%Y-%m-%d %H:%M:%SZ}"
    except OverflowError:
        return str(unix_us)


def shown_keys(keys: KeyRange) -> str:
    """Return a range of keys out of 1, rounded."""
    return f"{keys.low / KEY_SPACE:.4g} to {keys.high / KEY_SPACE:.4g}"


def _row(kind: str, cells: Iterable[object]) -> str:
    return f"<tr>{''.join(f'<{kind}>{escape(str(cell))}</{kind}>' for cell in cells)}</tr>"
