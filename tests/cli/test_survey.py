from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from millrace.cli.survey import join_ranges, missing_ranges, survey

RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)))


def places(ranges: list[tuple[int, int]]) -> set[int]:
    return {place for start, end in ranges for place in range(start, end)}


@given(RANGES)
def test_joined_ranges_hold_the_same_bytes_apart_and_ascending(ranges: list[tuple[int, int]]) -> None:
    joined = join_ranges(ranges)

    assert places(joined) == places(ranges)
    assert all(before[1] < after[0] for before, after in pairwise(joined))


@given(st.integers(0, 30), st.integers(0, 30), RANGES)
def test_missing_ranges_are_what_no_range_holds(start: int, end: int, present: list[tuple[int, int]]) -> None:
    missing = missing_ranges(start, end, present)

    assert places(missing) == set(range(start, end)) - places(present)
    assert sum(high - low for low, high in missing) == len(places(missing))


def test_a_killed_container_is_found_in_its_log_alone(killed_folder: Path) -> None:
    done: list[int] = []

    with survey(killed_folder / "containers" / "0000", owner=None, on_bytes=done.append) as found:
        segment = found.state.segments.find("raw/a")
        assert segment is not None
        assert segment.length == 3000
        assert found.logged[1] == [(0, 3000)]
        assert sum(done) == sum(path.stat().st_size for path in found.log_folder.iterdir())


def test_surveying_changes_no_file(killed_folder: Path) -> None:
    before = {path: path.read_bytes() for path in killed_folder.rglob("*") if path.is_file()}

    with survey(killed_folder / "containers" / "0000", owner=None):
        pass

    assert {path: path.read_bytes() for path in killed_folder.rglob("*") if path.is_file()} == before
