"""The checker accepts every history of a store that keeps its promises, and finds each promise that is broken."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.history import Recorder, Rule, WrongHistoryError, check, check_path, demand
from tests.support.history.bugs import Bug
from tests.support.history.generate import History
from tests.support.tables import table

FOUND_BY = {
    Bug.ACKNOWLEDGE_WITHOUT_STORING: {Rule.LOST},
    Bug.STORE_A_RETRY_AGAIN: {Rule.TWICE},
    Bug.STORE_WHAT_IS_REFUSED: {Rule.REFUSED},
    Bug.INVENT: {Rule.UNWRITTEN},
    Bug.IGNORE_THE_CONDITION: {Rule.CONDITION},
    Bug.LET_TWO_WIN_AN_OFFSET: {Rule.PLACE},
    Bug.REFUSE_AT_THE_RIGHT_OFFSET: {Rule.CONDITION},
    Bug.LET_AN_OTHER_WRITE: {Rule.EXCLUSIVE},
    Bug.OPEN_AT_AN_OTHER_END: {Rule.CONDITION},
    Bug.REVERSE_A_KEY: {Rule.KEY_ORDER},
    Bug.REVERSE_A_WRITER: {Rule.WRITER_ORDER},
    Bug.SKIP_ONE_OF_A_WRITER: {Rule.GAP},
    Bug.FORGET_A_SEQUENCE: {Rule.SEQUENCE},
    Bug.READ_OUT_OF_ORDER: {Rule.PREFIX},
    Bug.READ_SUCCESSORS_FIRST: {Rule.PREDECESSORS},
    Bug.TELL_AN_OLD_END: {Rule.STALE},
    Bug.SHOW_UNCOMMITTED: {Rule.EARLY},
    Bug.STORE_IN_THE_PAST: {Rule.REAL_TIME},
    Bug.CUT_ACROSS: {Rule.CUTS},
    Bug.CUT_THROUGH_A_TRANSACTION: {Rule.ATOMIC},
    Bug.COMMIT_HALF: {Rule.ATOMIC},
    Bug.COMMIT_A_PART_LATE: {Rule.ORDER},
    Bug.COMMIT_AN_OTHER_BRANCH: {Rule.ABORTED},
    Bug.STORE_WHAT_IS_ABORTED: {Rule.ABORTED},
    Bug.TELL_TWO_OUTCOMES: {Rule.OUTCOME},
    Bug.EXPIRE_A_PREPARED_ONE: {Rule.PREPARED},
    Bug.MOVE_WITHOUT_COMMIT: {Rule.REGISTER},
    Bug.MOVE_WITHOUT_CONDITION: {Rule.REGISTER},
    Bug.FORGET_A_MOVE: {Rule.REGISTER},
    Bug.BEGIN_WHAT_IS_COMMITTED: {Rule.REPEATED},
    Bug.COMMIT_A_SEQUENCE_AGAIN: {Rule.REPEATED},
    Bug.CALL_A_NEW_SEQUENCE_COMMITTED: {Rule.ALREADY},
    Bug.LET_AN_OLD_RUN_COMMIT: {Rule.FENCED},
    Bug.FENCE_THE_NEWEST_RUN: {Rule.FENCED},
    Bug.LET_AN_OTHER_HOLDER_BEGIN: {Rule.HELD},
    Bug.REFUSE_THE_HOLDER: {Rule.HELD},
    Bug.TAKE_A_COMMIT_BACK: {Rule.TAKEN_BACK},
    Bug.FORGET_A_PRODUCER: {Rule.TAKEN_BACK},
    Bug.TRUNCATE_TOO_MUCH: {Rule.TRUNCATED},
    Bug.SHOW_WHAT_IS_TRUNCATED: {Rule.TRUNCATED},
}
OPERATIONS = 3000
OPERATIONS_UNTIL_BROKEN_MAX = 20_000
SEEDS = range(2)


@pytest.mark.parametrize("seed", range(10))
def test_a_right_history_is_accepted(seed: int) -> None:
    verdict = check(History(seed=seed, operations=OPERATIONS).make())

    assert not verdict.violations, str(verdict)
    assert not verdict.counts["unread"]


@pytest.mark.parametrize("bug", list(Bug), ids=lambda bug: bug.name.lower())
@table("seed", SEEDS)
def test_a_broken_promise_is_found_by_its_rule_and_the_operations_named(bug: Bug, seed: int) -> None:
    history = History(seed=seed, operations=OPERATIONS_UNTIL_BROKEN_MAX, bug=bug)
    verdict = check(history.make())

    assert history.store.wronged, "the promise was not broken"
    found = [each for each in verdict.violations if each.rule in FOUND_BY[bug]]
    assert found, f"{bug} by {history.store.wronged} is not found: {verdict}"
    if history.store.wronged != ("",):
        named = {operation.id for each in found for operation in each.operations}
        assert named & set(history.store.wronged), f"{history.store.wronged} is not named: {verdict}"


def test_every_rule_is_broken_by_some_bug() -> None:
    assert set().union(*FOUND_BY.values()) == set(Rule)
    assert FOUND_BY.keys() == set(Bug)


@pytest.mark.slow
def test_a_long_history_is_checked_in_some_seconds() -> None:
    lines = History(seed=1, operations=100_000).make()
    started_s = time.process_time()
    verdict = check(lines)

    assert not verdict.violations, str(verdict)
    assert time.process_time() - started_s < 30


def test_what_is_recorded_in_several_files_is_one_history(tmp_path: Path) -> None:
    writer, reader = (Recorder(name, tmp_path / f"{name}.jsonl") for name in ("writer", "reader"))
    write = writer.call("w", "write", stream="a", writer="w", events=["e"])
    read = reader.call("r", "read", stream="a")
    writer.answer(write, "stored", places=[["0", 0, 0]])
    reader.took(read, [("0", 0, 0, "e")])
    reader.answer(read, "read", to={"0": [10, 0]}, tail={"0": [10, 0]})
    writer.close()
    reader.close()

    verdict = check_path(tmp_path)

    assert not verdict.violations, str(verdict)
    assert verdict.counts == {"write": 1, "read": 1, "events": 1, "acknowledged": 1, "unread": 0}


@pytest.mark.parametrize(("seen", "rules"), [(0, []), (1, [Rule.TRUNCATED])])
def test_a_truncation_leaves_the_block_that_its_cut_goes_through(seen: int, rules: list[Rule]) -> None:
    recorder = Recorder()
    events = ["e0", "e1"]
    places = [["0", 0, 0], ["0", 0, 1]]
    recorder.answer(recorder.call("w", "write", stream="a", events=events), "stored", places=places)
    recorder.answer(recorder.call("t", "truncate", stream="a", cut={"0": [0, 1]}), "done")
    read = recorder.call("r", "read", stream="a")
    recorder.took(read, [("0", 0, index, events[index]) for index in range(seen, 2)])
    recorder.answer(read, "read", to={"0": [20, 0]})

    assert [each.rule for each in check(recorder.lines).violations] == rules


def test_the_torn_last_line_of_a_killed_process_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "killed.jsonl"
    recorder = Recorder("w", path)
    recorder.call("w", "write", stream="a", events=["e"])
    recorder.close()
    path.write_bytes(path.read_bytes() + b'{"at": 1, "id": "w.1", "ans')

    assert check_path(path).counts["write"] == 1


def test_a_line_that_is_none_is_refused() -> None:
    answer = json.dumps({"at": 1, "id": "h.1", "answer": "stored"})

    with pytest.raises(ValueError, match=r"h\.1"):
        check([answer])


def test_a_wrong_history_is_kept_in_a_file() -> None:
    recorder = Recorder()
    recorder.took(recorder.call("r", "read", stream="a"), [("0", 0, 0, "nobody's")])

    with pytest.raises(WrongHistoryError, match="UNWRITTEN") as raised:
        demand(recorder.lines)

    assert [each.rule for each in check_path(raised.value.kept).violations] == [Rule.UNWRITTEN]
    raised.value.kept.unlink()


@pytest.mark.slow
def test_a_history_is_checked_from_its_file_by_command(tmp_path: Path) -> None:
    path = tmp_path / "wrong.jsonl"
    recorder = Recorder("h", path)
    read = recorder.call("r", "read", stream="a")
    recorder.took(read, [("0", 0, 0, "nobody's")])
    recorder.close()

    finished = subprocess.run(
        [sys.executable, "-m", "tests.support.history", str(path)], capture_output=True, text=True, check=False
    )

    assert finished.returncode == 1
    assert "UNWRITTEN" in finished.stdout
