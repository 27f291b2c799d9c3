from fractions import Fraction

import pytest
import typer

from millrace.cli.scaling import merged_range, parse_fraction, parse_ranges, split_ranges
from millrace.model.key_range import KEY_SPACE, KeyRange
from tests.cli.conftest import Run
from tests.support.tables import table

HALF = KEY_SPACE // 2


def open_ids(ask: Run, stream: str) -> list[int]:
    segments = ask("stream", "info", stream, "--json").json["segments"]
    return [
        segment["segment_id"]
        for segment in sorted(segments, key=lambda segment: float(segment["low"]))
        if not segment["sealed_epoch"]
    ]


def test_fractions() -> None:
    assert parse_fraction("0.25") == 0.25
    assert parse_fraction(" 1/3") == Fraction(1, 3)
    assert parse_ranges("0:0.25,0.25:1/2") == [(0, 0.25), (0.25, Fraction(1, 2))]


@table("text", ["", "x", "1/0", "1.5", "-0.1", "nan", "1e999"])
def test_what_is_no_fraction_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_fraction(text)


def test_a_segment_is_split_in_its_middle_or_where_one_likes() -> None:
    keys = KeyRange(0, HALF)

    assert split_ranges(keys, []) == [(0, HALF // 2), (HALF // 2, HALF)]
    assert split_ranges(keys, [0.375, 0.125]) == [(0, HALF // 4), (HALF // 4, 3 * HALF // 4), (3 * HALF // 4, HALF)]
    for outside in (0.5, 0.75, 0):
        with pytest.raises(typer.BadParameter, match=r"between 0\.0 and 0\.5"):
            split_ranges(keys, [outside])


def test_only_neighbours_are_merged() -> None:
    first, second, third = KeyRange(0, 5), KeyRange(5, 9), KeyRange(9, KEY_SPACE)

    assert merged_range([second, first]) == [(0, 9)]
    with pytest.raises(typer.BadParameter, match="neighbours"):
        merged_range([first, third])


def test_segments_are_split_and_merged_by_hand(ask: Run) -> None:
    ask("stream", "create", "scaling/hand")
    (first,) = open_ids(ask, "scaling/hand")

    split = ask("stream", "scale", "scaling/hand", "--split", first, "--at", 0.25, "--at", "1/3")
    low, middle, high = open_ids(ask, "scaling/hand")
    merged = ask("stream", "scale", "scaling/hand", "--merge", middle, high)
    low, high = open_ids(ask, "scaling/hand")
    recut = ["stream", "scale", "scaling/hand", "--seal", f"{low},{high}", "--ranges", "0:0.5,0.5:1"]

    assert (split.code, merged.code) == (0, 0)
    assert "3 open segments now" in split.err
    assert "2 open segments now" in merged.err
    assert ask(*recut).code == 0
    created = ask("stream", "history", "scaling/hand", "--json").json[-1]["created"]
    assert [(part["low"], part["high"]) for part in created] == [(0.0, 0.5), (0.5, 1.0)]
    # Behaviour 23: the same again changes nothing.
    assert "nothing was changed" in ask(*recut).err


def test_ranges_replace_the_segments_with_these_keys(ask: Run) -> None:
    """Without numbers of segments, which count over the whole server."""
    ask("stream", "create", "scaling/keys")

    for ranges, count in (("0:1/3,1/3:1", 2), ("1/3:0.6,0.6:0.8,0.8:1", 4), ("0:0.6", 3), ("0.6:1,0:0.6", 2)):
        assert f"{count} open segment" in ask("stream", "scale", "scaling/keys", "--ranges", ranges).err
        assert "nothing was changed" in ask("stream", "scale", "scaling/keys", "--ranges", ranges).err
        assert len(open_ids(ask, "scaling/keys")) == count


def test_a_printed_border_means_the_exact_one(ask: Run) -> None:
    ask("stream", "create", "scaling/thirds", "--segments", 3)
    first, second, third = open_ids(ask, "scaling/thirds")

    assert ask("stream", "scale", "scaling/thirds", "--ranges", f"{1 / 3}:{2 / 3}").err.endswith(
        "nothing was changed\n"
    )
    ask("stream", "scale", "scaling/thirds", "--ranges", f"{1 / 3}:1")
    assert open_ids(ask, "scaling/thirds")[0] == first
    assert not {second, third} & set(open_ids(ask, "scaling/thirds"))


def test_ranges_that_do_not_fit_are_refused(ask: Run) -> None:
    """Behaviour 23."""
    ask("stream", "create", "scaling/refused")
    (first,) = open_ids(ask, "scaling/refused")

    assert ask("stream", "scale", "scaling/refused", "--seal", first, "--ranges", "0:0.5").code == 2
    assert ask("stream", "scale", "scaling/refused", "--ranges", "0:0.5").code == 2
    assert ask("stream", "scale", "scaling/refused", "--split", 999_999).code == 2
    assert ask("stream", "scale", "scaling/missing", "--split", 1).code == 1


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--split", 1, "--merge", 1, 2),
        ("--seal", 1),
        ("--split", 1, "--ranges", "0:1"),
        ("--merge", 1, 2, "--at", 0.5),
        ("--seal", "one", "--ranges", "0:1"),
        ("--seal", 1, "--ranges", "0-1"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_asked(run: Run, arguments: tuple[object, ...]) -> None:
    assert run("stream", "scale", "a/b", *arguments, "--address", "127.0.0.1:1").code == 2
