from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtests.run import SCENARIOS, find_scenario
from loadtests.workload import (
    EVENT,
    EVENT_SIZE_BYTES_MIN,
    EventSource,
    Producers,
    Scenario,
    ScenarioError,
    Schedule,
    SequenceChecker,
    Violation,
    events_in,
)
from tests.support.tables import table


def heads(*events: tuple[int, int, int]) -> Any:
    """Events as (producer, key, sequence)."""
    return np.array([(producer, key, sequence, 0) for producer, key, sequence in events], EVENT)


@table("path", sorted(SCENARIOS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_scenario_of_ours_loads_and_says_what_it_is_for(path: Path) -> None:
    scenario = Scenario.load(path)

    assert scenario.name == path.stem
    assert scenario.description
    assert scenario.users >= 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("durations = 1", "durations is not a field"),
        ("duration_s = 0", "above 0"),
        ("duration_s = 'long'", "not of type float"),
        ("segments = true", "not of type int"),
        ("segments = 0", "at least 1"),
        ("[producers]\nevent_size = 10", "at least 24"),
        ("[producers]\nevent_size = 1000\nevents_per_append = 10000", "above"),
        ("[producers]\nrate_per_s = -1", "below 0"),
        ("[tail_readers]\nspeed = 1", "speed is not a field"),
        ("[catch_up_readers]\nread_size = 1", "at least 1024"),
        ("segments = ", "Invalid"),
    ],
)
def test_a_scenario_that_makes_no_sense_names_the_field(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)

    with pytest.raises(ScenarioError, match=problem):
        Scenario.load(path)


def test_a_scenario_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(ScenarioError, match=r"there are .*steady"):
        find_scenario("steddy")


def test_single_fields_can_be_changed() -> None:
    scenario = Scenario(name="a").changed({"duration_s": 3, "producers.rate_per_s": 7, "tail_readers.users": 0})

    assert (scenario.duration_s, scenario.producers.rate_per_s, scenario.tail_readers.users) == (3.0, 7.0, 0)
    assert scenario.users == 1


@table("changes", [{"producers.speed": 1}, {"writers.rate": 1}, {"segments": 0}, {"segments": "4"}])
def test_a_change_that_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError):
        Scenario(name="a").changed(changes)


def test_events_are_due_evenly() -> None:
    assert [Schedule(10.0).due_s(index) for index in (0, 1, 15)] == [0.0, 0.1, 1.5]


def test_a_burst_is_followed_by_its_pause() -> None:
    schedule = Schedule(10.0, burst_s=0.5, pause_s=2.0)

    assert [schedule.due_s(index) for index in (0, 4, 5, 9, 10)] == [0.0, 0.4, 2.5, 2.9, 5.0]


def test_without_a_rate_everything_is_due_at_once() -> None:
    assert Schedule(0.0).due_s(1000) == 0.0


@settings(deadline=None, print_blob=True)
@given(
    keys=st.integers(1, 5),
    events_per_append=st.integers(1, 7),
    event_size=st.integers(EVENT_SIZE_BYTES_MIN, 80),
    appends=st.integers(1, 20),
)
def test_what_a_producer_writes_passes_the_check_in_any_pieces(
    keys: int, events_per_append: int, event_size: int, appends: int
) -> None:
    source = EventSource(3, Producers(keys=keys, events_per_append=events_per_append, event_size=event_size))
    checker = SequenceChecker()
    for index in range(appends):
        key, values = source.next_append(due_ns=index)
        found = events_in(b"".join(values), event_size)
        assert set(found["key"].tolist()) == {key}
        assert set(found["due_ns"].tolist()) == {index}
        assert list(checker.check(found)) == []

    assert checker.events == appends * events_per_append
    assert checker.last == {(3, key): last for key, last in enumerate(source.written) if last}


def test_a_gap_is_a_loss_and_counting_continues_after_it() -> None:
    checker = SequenceChecker()

    assert list(checker.check(heads((1, 0, 1), (1, 0, 4), (1, 0, 5)))) == [Violation(1, 0, expected=2, found=4)]
    assert list(checker.check(heads((1, 0, 6)))) == []


def test_the_first_event_must_be_the_first() -> None:
    (violation,) = SequenceChecker().check(heads((1, 0, 2)))

    assert violation.lost


def test_a_repeat_and_a_swap_are_out_of_order() -> None:
    (repeat,) = SequenceChecker().check(heads((1, 0, 1), (1, 0, 1)))
    swapped = list(SequenceChecker().check(heads((1, 0, 1), (1, 0, 3), (1, 0, 2))))

    assert not repeat.lost
    assert [violation.lost for violation in swapped] == [True, False]


def test_producers_and_keys_are_counted_apart() -> None:
    checker = SequenceChecker()

    assert list(checker.check(heads((1, 0, 1), (2, 0, 1), (1, 1, 1), (1, 0, 2), (2, 0, 2)))) == []
    assert checker.last == {(1, 0): 2, (1, 1): 1, (2, 0): 2}


def test_every_key_has_one_segment_and_all_segments_are_used() -> None:
    scenario = Scenario(name="a", segments=3, producers=Producers(users=2, keys=4))

    assert {scenario.segment_of(producer, key) for producer in range(2) for key in range(4)} == {0, 1, 2}
