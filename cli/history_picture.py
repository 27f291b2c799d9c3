"""The segments of a stream over time, drawn with characters: time goes down, the key space goes across.

             0         1/4        1/2        3/4         1
    12:00:00 ┌───────────────────────────────────────────┐ created
             │                     1                     │
    12:01:10 ├─────────────────────┬─────────────────────┤ 1 split
             │          2          │          3          │
    12:02:40 │                     ├──────────┬──────────┤ 3 split
             │                     │    4     │    5     │
    12:09:05 ├─────────────────────┴──────────┤          │ 2, 4 merged
             │               6                │          │
    12:10:00 └────────────────────────────────┴──────────┘ now

A line across is a scale: the segments above it were sealed, those below it took over their keys. A segment that no
line crosses lives on. Between two scales there is at least one line; the others are shared out by how long an
epoch lasted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from millrace.model.key_range import KEY_SPACE, KeyRange
from millrace.model.lineage import Epoch

WIDTH_MIN: Final = 16
QUARTERS_WIDTH_MIN: Final = 24
LONG_US: Final = 20 * 3600 * 1_000_000
"""Above this duration the day matters more than the second."""

# By whether a line goes up, down, left and right from the middle of the cell.
_GLYPHS: Final = {
    (0, 0, 0, 0): " ", (0, 0, 1, 1): "─", (1, 1, 0, 0): "│", (0, 1, 0, 1): "┌", (0, 1, 1, 0): "┐", (1, 0, 0, 1): "└",
    (1, 0, 1, 0): "┘", (1, 1, 0, 1): "├", (1, 1, 1, 0): "┤", (0, 1, 1, 1): "┬", (1, 0, 1, 1): "┴", (1, 1, 1, 1): "┼",
}  # fmt: skip
_ASCII: Final = str.maketrans({"─": "-", "│": "|"} | dict.fromkeys("┌┐└┘├┤┬┴┼", "+"))


@dataclass(frozen=True, slots=True)
class Period:
    """An epoch with the segments that were open in it.

    Attributes:
        duration_us: until the next epoch began.
        open_segments: (segment id, keys), in the order of their keys.
        changed: the ranges of keys that were sealed when it began.
    """

    epoch: Epoch
    duration_us: int
    open_segments: tuple[tuple[int, KeyRange], ...]
    changed: tuple[KeyRange, ...]


def periods(epochs: Sequence[Epoch], *, end_us: int) -> list[Period]:
    """Return the epochs with their open segments; the last one lasts until `end_us`."""
    found: list[Period] = []
    open_segments: dict[int, KeyRange] = {}
    for index, epoch in enumerate(epochs):
        next_us = epochs[index + 1].started_us if index + 1 < len(epochs) else end_us
        changed = tuple(open_segments.pop(segment_id) for segment_id in epoch.sealed_ids if segment_id in open_segments)
        open_segments |= dict(epoch.created)
        in_order = sorted(open_segments.items(), key=lambda item: item[1].low)
        found.append(Period(epoch, max(0, next_us - epoch.started_us), tuple(in_order), changed))
    return found


def change_text(epoch: Epoch) -> str:
    """Describe the change of an epoch."""
    sealed, created = _ids(epoch.sealed_ids), _ids(segment_id for segment_id, _ in epoch.created)
    return f"{_verb(epoch)} {sealed} into {created}" if sealed else f"{_verb(epoch)} {created}"


def draw_history(
    epochs: Sequence[Epoch],
    *,
    end_us: int,
    end_text: str = "now",
    width: int = 80,
    height: int = 24,
    ascii_only: bool = False,
) -> list[str]:
    """Return the lines of the picture, without trailing spaces.

    Args:
        width: of the key space, in columns. The description of a scaling is to the right of it.
        height: lines between the first and the last border; more if there are more epochs.
    """
    drawn = periods(epochs, end_us=end_us)
    if not drawn:
        return []
    width = max(width, WIDTH_MIN)
    time_format = "%m-%d %H:%M" if end_us - epochs[0].started_us > LONG_US else "%H:%M:%S"
    margin = len(_clock_text(end_us, time_format)) + 1
    lines = [" " * margin + _ruler(width)]
    above: set[int] = set()
    seen: set[int] = set()
    for period, count in zip(drawn, _line_counts([period.duration_us for period in drawn], height=height), strict=True):
        changed = period.changed or (KeyRange(0, KEY_SPACE),)
        borders = _columns((key_range for _, key_range in period.open_segments), width)
        time = _clock_text(period.epoch.started_us, time_format)
        lines.append(f"{time} {_border(above, borders, changed, width)} {_note(period.epoch)}")
        named = [(segment_id, key_range) for segment_id, key_range in period.open_segments if segment_id not in seen]
        seen.update(segment_id for segment_id, _ in named)
        lines.append(" " * margin + _row(borders, named, width))
        lines += [" " * margin + _row(borders, (), width)] * (count - 1)
        above = borders
    whole = (KeyRange(0, KEY_SPACE),)
    lines.append(f"{_clock_text(end_us, time_format)} {_border(above, set(), whole, width)} {end_text}")
    return [(line.translate(_ASCII) if ascii_only else line).rstrip() for line in lines]


def _line_counts(durations: Sequence[int], *, height: int) -> list[int]:
    """Distribute lines by durations: at least one each, and the requested total if possible."""
    spare = max(0, height - 2 * len(durations) + 1)
    total = sum(durations) or 1
    reached = given = 0
    counts = []
    for duration in durations:
        # By cumulative duration: rounding each one separately would not add up.
        reached += duration
        upto = reached * spare // total
        counts.append(1 + upto - given)
        given = upto
    return counts


def _border(above: set[int], below: set[int], changed: Iterable[KeyRange], width: int) -> str:
    """Return the line between two epochs: horizontal where segments changed, vertical where they did not."""
    spans = [(_column(key_range.low, width), _column(key_range.high, width)) for key_range in changed]
    cells = []
    for column in range(width):
        left = any(low < column <= high for low, high in spans)
        right = any(low <= column < high for low, high in spans)
        cells.append(_GLYPHS[int(column in above), int(column in below), int(left), int(right)])
    return "".join(cells)


def _row(borders: set[int], named: Iterable[tuple[int, KeyRange]], width: int) -> str:
    """Return a line inside an epoch, with the names of segments where they fit."""
    cells = ["│" if column in borders else " " for column in range(width)]
    for segment_id, key_range in named:
        text = str(segment_id)
        low, high = _column(key_range.low, width), _column(key_range.high, width)
        room = high - low - 1
        if len(text) <= room:
            start = low + 1 + (room - len(text)) // 2
            cells[start : start + len(text)] = text
    return "".join(cells)


def _columns(ranges: Iterable[KeyRange], width: int) -> set[int]:
    return {_column(border, width) for key_range in ranges for border in (key_range.low, key_range.high)}


def _column(key: int, width: int) -> int:
    return (key * (width - 1) + KEY_SPACE // 2) // KEY_SPACE


def _ruler(width: int) -> str:
    cells = [" "] * width
    for text, share in (("0", 0.0), ("1/4", 0.25), ("1/2", 0.5), ("3/4", 0.75), ("1", 1.0)):
        if "/4" in text and width < QUARTERS_WIDTH_MIN:
            continue
        start = min(max(0, round(share * (width - 1)) - len(text) // 2), width - len(text))
        cells[start : start + len(text)] = text
    return "".join(cells)


def _note(epoch: Epoch) -> str:
    return f"{_ids(epoch.sealed_ids)} {_verb(epoch)}".lstrip()


def _verb(epoch: Epoch) -> str:
    if not epoch.sealed_ids:
        return "created"
    return "split" if len(epoch.sealed_ids) == 1 else "merged" if len(epoch.created) == 1 else "replaced"


def _ids(segment_ids: Iterable[int]) -> str:
    return ", ".join(str(segment_id) for segment_id in sorted(segment_ids))


def _clock_text(unix_us: int, time_format: str) -> str:
    return datetime.fromtimestamp(unix_us // 1_000_000, UTC).strftime(time_format)
