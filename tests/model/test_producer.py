from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model.errors import InvalidArgumentError, InvalidNameError
from millrace.model.producer import (
    FENCED_RUNS_COUNT_MAX,
    Producer,
    ProducerRow,
    ProducerVerdict,
    checked_fingerprint,
    checked_producer,
)
from tests.support.tables import table

P = Producer("w", "h", "r1", 7)
TAKEN = ProducerRow().taken("h", "r1")


def test_nothing_is_known_of_a_new_producer() -> None:
    assert ProducerRow() == ProducerRow(holder="", run="", last_sequence=-1, fenced=())
    assert ProducerRow().at_begin(P._replace(sequence=0)) is ProducerVerdict.NEW


def test_a_run_that_takes_over_fences_the_one_before() -> None:
    """Behaviour 69."""
    row = TAKEN.committed(7).taken("h", "r2")
    assert row == ProducerRow("h", "r2", 7, ("r1",))
    assert row.taken("h", "r2") is row
    assert row.at_begin(P._replace(sequence=8)) is row.at_commit(P._replace(sequence=8)) is ProducerVerdict.FENCED


def test_a_sequence_up_to_the_last_one_is_stored() -> None:
    """Behaviour 67: in every run."""
    row = TAKEN.committed(7).committed(3)
    assert row.last_sequence == 7
    for run in ("r1", "r2"):
        verdicts = [row.at_begin(Producer("w", "h", run, sequence)) for sequence in (0, 7, 8)]
        assert verdicts == [ProducerVerdict.STORED, ProducerVerdict.STORED, ProducerVerdict.NEW]
    assert row.at_commit(P) is ProducerVerdict.STORED
    assert row.at_commit(P._replace(sequence=8)) is ProducerVerdict.NEW


def test_another_holder_is_refused_whatever_its_sequence() -> None:
    """Behaviour 69: also at a commit; a run that is fenced is so for every holder."""
    row = TAKEN.taken("h", "r2").committed(7)
    for sequence in (0, 7, 8):
        assert row.at_begin(Producer("w", "x", "n", sequence)) is ProducerVerdict.HELD
        assert row.at_commit(Producer("w", "x", "n", sequence)) is ProducerVerdict.HELD
        assert row.at_begin(Producer("w", "x", "r1", sequence)) is ProducerVerdict.FENCED


def test_a_reset_starts_the_sequences_over_and_keeps_what_is_fenced() -> None:
    row = TAKEN.taken("h", "r2").committed(7).reset("x")
    assert row == ProducerRow("x", "", -1, ("r1", "r2"))
    assert row.reset("") == ProducerRow("", "", -1, ("r1", "r2"))
    assert row.at_begin(Producer("w", "h", "r3", 8)) is ProducerVerdict.HELD
    assert row.at_begin(Producer("w", "x", "r2", 8)) is ProducerVerdict.FENCED
    assert row.at_begin(Producer("w", "x", "n", 0)) is ProducerVerdict.NEW
    assert row.reset("").at_begin(Producer("w", "h", "r3", 0)) is ProducerVerdict.NEW


def test_a_run_of_another_holder_is_one_after_a_reset() -> None:
    """Of which damage has taken the record."""
    assert TAKEN.committed(7).taken("x", "n") == ProducerRow("x", "n", -1, ("r1",))


@given(st.lists(st.integers(0, 200), unique=True))
def test_a_replaced_run_never_commits_however_many_followed(runs: list[int]) -> None:
    row = TAKEN
    for number, run in enumerate(runs):
        row = row.taken("h", f"n{run}")
        assert len(row.fenced) == min(number + 1, FENCED_RUNS_COUNT_MAX)
        assert row.at_commit(P) is ProducerVerdict.FENCED
    expected = ["r1", *(f"n{run}" for run in runs)][:-1][-FENCED_RUNS_COUNT_MAX:]
    assert list(row.fenced) == expected


@table("producer", [P, tuple(P), ("w", "h" * 255, "ü", 0), ("w", "h", "r", (1 << 63) - 1)])
def test_a_producer_is_four_values(producer: tuple[str, str, str, int]) -> None:
    assert checked_producer(producer) == producer
    assert isinstance(checked_producer(producer), Producer)


@table("producer", ["whrs", ("w", "h", "r"), ["w", "h", "r", 1], None])
def test_what_is_no_producer_is_refused(producer: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="not a producer"):
        checked_producer(producer)


@table("sequence", [-1, 1 << 63, "1", 1.0, True, None])
def test_what_is_no_sequence_is_refused(sequence: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="sequence"):
        checked_producer(P._replace(sequence=sequence))


@table(
    ("part", "message"), [("writer_id", "writer id"), ("holder", "holder of a producer"), ("run", "run of a producer")]
)
@table("text", ["", "x" * 256, "a\nb", b"bytes", 7])
def test_what_is_no_text_for_a_part_is_refused(part: str, message: str, text: Any) -> None:
    with pytest.raises(InvalidNameError, match=message):
        checked_producer(P._replace(**{part: text}))


def test_a_fingerprint_is_of_the_last_sequence_only() -> None:
    """Behaviour 99: it counts once the commit follows, and not for a later commit without one."""
    described = TAKEN.with_fingerprint(7, "a")
    assert (TAKEN.fingerprint, described.fingerprint) == ("", "")
    assert described.committed(7).fingerprint == "a"
    assert described.committed(7).taken("h", "r2").fingerprint == "a"
    assert described.committed(7).committed(8).fingerprint == ""
    assert described.committed(7).reset("x").taken("x", "n").fingerprint == ""


@pytest.mark.parametrize("fingerprint", ["", "é" * 512])
def test_a_fingerprint_is_a_short_text(fingerprint: str) -> None:
    assert checked_fingerprint(fingerprint) == fingerprint


@pytest.mark.parametrize(
    ("fingerprint", "problem"), [(b"a", "must be a text"), ("é" * 513, "at most 1024 bytes, not 1026")]
)
def test_another_fingerprint_is_refused(fingerprint: str, problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        checked_fingerprint(fingerprint)


def test_a_row_is_unused_until_a_commit_or_a_second_run() -> None:
    row = ProducerRow().taken("h", "r1")
    assert row.is_unused
    assert not row.committed(0).is_unused
    assert not row.taken("h", "r2").is_unused
    assert not row.reset("other").is_unused
