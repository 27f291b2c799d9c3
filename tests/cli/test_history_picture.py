import inspect
import itertools
import textwrap
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.cli import history_picture
from millrace.cli.history_picture import change_text, draw_history, periods
from millrace.model.key_range import KEY_SPACE, KeyRange
from millrace.model.lineage import Epoch
from tests.support.tables import table

NOON_US = 43_200_000_000


def keys(low: float, high: float) -> KeyRange:
    return KeyRange(int(low * KEY_SPACE), int(high * KEY_SPACE))


def epoch(number: int, at_s: int, sealed: Sequence[int], created: Sequence[tuple[int, KeyRange]]) -> Epoch:
    return Epoch(
        number=number,
        started_us=NOON_US + at_s * 1_000_000,
        cause="by hand",
        sealed_ids=tuple(sealed),
        created=tuple(created),
    )


FIGURE = [
    epoch(0, 0, (), [(1, keys(0, 1))]),
    epoch(1, 70, (1,), [(2, keys(0, 0.5)), (3, keys(0.5, 1))]),
    epoch(2, 160, (3,), [(4, keys(0.5, 0.75)), (5, keys(0.75, 1))]),
    epoch(3, 545, (2, 4), [(6, keys(0, 0.75))]),
]
END_US = NOON_US + 600_000_000


def example() -> list[str]:
    """Return the picture in the docstring of the module."""
    docstring = inspect.getdoc(history_picture) or ""
    (block,) = [part for part in docstring.split("\n\n") if "┌" in part]
    return textwrap.dedent(block).splitlines()


def test_the_picture_in_the_docstring_is_what_is_drawn() -> None:
    drawn = draw_history(FIGURE, end_us=END_US, width=45, height=7)

    assert textwrap.dedent("\n".join(drawn)).splitlines() == example()


def test_without_box_characters_the_lines_are_as_long() -> None:
    boxed = draw_history(FIGURE, end_us=END_US, width=40)
    plain = draw_history(FIGURE, end_us=END_US, width=40, ascii_only=True)

    assert all(line.isascii() for line in plain)
    assert list(map(len, plain)) == list(map(len, boxed))


def test_spare_lines_go_to_the_epochs_that_lasted() -> None:
    lines = draw_history(FIGURE, end_us=END_US, width=40, height=47)
    starts = [index for index, line in enumerate(lines) if line[:1] == "1"]
    rows = [after - before for before, after in itertools.pairwise(starts)]

    assert len(lines) == 1 + 1 + 47 + 1
    assert rows.index(max(rows)) == 2


def test_a_segment_too_narrow_for_its_name_is_drawn_without() -> None:
    narrow = [epoch(0, 0, (), [(10, keys(0, 0.01)), (11, keys(0.01, 1))])]

    drawn = "".join(draw_history(narrow, end_us=END_US, width=20))

    assert "11" in drawn
    assert "10" not in drawn.replace("12:10:00", "")


def test_over_days_the_date_is_told() -> None:
    drawn = draw_history(FIGURE, end_us=END_US + 5 * 86_400_000_000)

    assert drawn[1].startswith("01-01 12:00 ┌")
    assert drawn[-1].startswith("01-06 12:10 └")


def test_no_epochs_no_picture() -> None:
    assert draw_history([], end_us=END_US) == []


@table(
    ("index", "text"), [(0, "created 1"), (1, "split 1 into 2, 3"), (3, "merged 2, 4 into 6")]
)  # fmt: skip
def test_a_change_in_words(index: int, text: str) -> None:
    assert change_text(FIGURE[index]) == text


def test_many_replaced_by_many_is_neither_split_nor_merge() -> None:
    thirds = epoch(4, 1, (5, 6), [(7, keys(0, 0.25)), (8, keys(0.25, 1))])

    assert change_text(thirds) == "replaced 5, 6 into 7, 8"


@st.composite
def histories(draw: st.DrawFn) -> list[Epoch]:
    """Draw histories of splits and merges at any borders, however narrow."""
    epochs = [epoch(0, 0, (), [(1, KeyRange(0, KEY_SPACE))])]
    open_segments = {1: KeyRange(0, KEY_SPACE)}
    next_id, at_s = 2, 0
    for number in range(1, draw(st.integers(1, 12))):
        at_s += draw(st.integers(0, 1000))
        in_order = sorted(open_segments, key=lambda each: open_segments[each].low)
        first = draw(st.integers(0, len(in_order) - 1))
        sealed = in_order[first : first + draw(st.integers(1, 3))]
        low, high = open_segments[sealed[0]].low, open_segments[sealed[-1]].high
        inner = draw(st.sets(st.integers(low + 1, high - 1), max_size=4)) if high - low > 1 else set()
        borders = [low, *sorted(inner), high]
        created = []
        for start, end in itertools.pairwise(borders):
            created.append((next_id, KeyRange(start, end)))
            next_id += 1
        for segment_id in sealed:
            del open_segments[segment_id]
        open_segments |= dict(created)
        epochs.append(epoch(number, at_s, sealed, created))
    return epochs


@settings(deadline=None, print_blob=True)
@given(histories(), st.integers(0, 100), st.integers(0, 60))
def test_every_history_has_a_picture_of_even_lines(epochs: list[Epoch], width: int, height: int) -> None:
    end_us = epochs[-1].started_us + 5_000_000
    drawn = draw_history(epochs, end_us=end_us, width=width, height=height)
    inside = [line[9 : 9 + max(width, 16)] for line in drawn[1:]]

    assert len(drawn) == 3 + max(height, 2 * len(epochs) - 1)
    assert all(line[0] in "┌├│└" and line[-1] in "┐┤│┘" for line in inside)
    for period in periods(epochs, end_us=end_us):
        assert period.open_segments[0][1].low == 0
        assert period.open_segments[-1][1].high == KEY_SPACE
