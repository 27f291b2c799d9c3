from tests.cli.conftest import Run
from tests.cli.test_scaling import open_ids


def scaled(ask: Run, name: str) -> list[int]:
    """Make a stream that was split and merged again; return all its segments."""
    ask("stream", "create", name)
    (first,) = open_ids(ask, name)
    ask("stream", "scale", name, "--split", first)
    low, high = open_ids(ask, name)
    ask("stream", "scale", name, "--merge", low, high)
    return [first, low, high, *open_ids(ask, name)]


def test_the_history_is_drawn_and_listed(ask: Run) -> None:
    first, low, high, last = scaled(ask, "history/both")

    shown = ask("stream", "history", "history/both")
    table = [line.split() for line in shown.lines if line.split()[:1] in (["0"], ["1"], ["2"])][1:]

    assert f" {first} split" in shown.out
    assert f" {low}, {high} merged" in shown.out
    assert "┬" in shown.out
    assert [row[0] for row in table] == ["0", "1", "2"]
    assert f"merged {low}, {high} into {last}" in shown.out
    assert all(line == line.rstrip() for line in shown.lines)


def test_either_half_is_shown_alone(ask: Run) -> None:
    scaled(ask, "history/half")

    picture = ask("stream", "history", "history/half", "--no-table").out
    table = ask("stream", "history", "history/half", "--no-picture").out

    assert "┬" in picture
    assert "cause" not in picture
    assert "┬" not in table
    assert table.startswith("epoch")


def test_the_history_as_json(ask: Run) -> None:
    first, low, high, last = scaled(ask, "history/json")

    created, split, merged = ask("stream", "history", "history/json", "--json").json

    assert created["created"] == [{"segment_id": first, "low": 0.0, "high": 1.0}]
    assert (split["sealed_ids"], merged["sealed_ids"]) == ([first], [low, high])
    assert [part["segment_id"] for part in split["created"]] == [low, high]
    assert [part["segment_id"] for part in merged["created"]] == [last]
    assert created["started_us"] <= split["started_us"] <= merged["started_us"]


def test_a_sealed_stream_ends_in_the_picture(ask: Run) -> None:
    ask("stream", "create", "history/sealed")
    ask("stream", "seal", "history/sealed")

    assert ask("stream", "history", "history/sealed", "--no-table").lines[-1].endswith("now, sealed")


def test_a_missing_stream_has_no_history(ask: Run) -> None:
    assert ask("stream", "history", "history/missing").code == 1
