"""The books of the torture of transactions: right ones are accepted, and whatever is wrong is found."""

from collections.abc import Callable

import pytest

from tests.crash.transactions.accounting import Books
from tests.crash.transactions.recorded import Tag
from tests.support.history import Recorder
from tests.support.tables import table

TAG = Tag("w", 1, 0, 4)
EVENTS = [(f"k{number % 2}", TAG.event(number)) for number in range(4)]

Streams = dict[str, list[tuple[str, str]]]


def recorded(*ends: tuple[str, str]) -> Recorder:
    """Return the history of a transaction over two streams, about whose end was asked and told this."""
    recorder = Recorder()
    recorder.answer(recorder.call("w", "begin", name="t"), "begun", txn=7)
    for stream, some in (("a", EVENTS[:2]), ("b", EVENTS[2:])):
        recorder.call("w", "write", stream=stream, txn=7, branch="w/1", events=[event for _, event in some])
    for call, answer in ends:
        fields = {} if call == "abort" else {"branches": ["w/1"]}
        recorder.answer(recorder.call("w", call, txn=7, **fields), answer, txn=7)
    return recorder


def whole() -> Streams:
    return {"a": EVENTS[:2], "b": EVENTS[2:]}


@table(
    ("ends", "streams", "counted"),
    [
        ([("commit", "committed")], whole(), "committed"),
        ([("prepare", "prepared"), ("commit", "already")], whole(), "committed"),
        ([("abort", "aborted")], {}, "aborted"),
        ([], {}, "untold, and not there"),
        ([], whole(), "untold, and there"),
    ],
)
def test_what_is_whole_or_not_there_is_right(ends: list[tuple[str, str]], streams: Streams, counted: str) -> None:
    assert Books.of(recorded(*ends).lines).check(streams) == {counted: 1}


def twice(streams: Streams) -> Streams:
    return {"a": streams["a"] + streams["a"][-1:], "b": streams["b"]}


def half(streams: Streams) -> Streams:
    return {"a": streams["a"], "b": []}


def out_of_order(streams: Streams) -> Streams:
    later = [(key, Tag("w", 1, 1, 4).event(index)) for index, (key, _) in enumerate(EVENTS)]
    return {"a": [*later, *streams["a"]], "b": streams["b"]}


def invented(streams: Streams) -> Streams:
    return {**streams, "c": [("k0", Tag("w", 2, 0, 1).event(0))]}


@table("damage", [twice, half, out_of_order, invented])
def test_what_is_not_whole_is_found(damage: Callable[[Streams], Streams]) -> None:
    for ends in ([("commit", "committed")], []):
        with pytest.raises(AssertionError, match=r"Tag|key"):
            Books.of(recorded(*ends).lines).check(damage(whole()))


@table(
    ("ends", "streams"),
    [
        ([("commit", "committed")], {}),
        ([("abort", "aborted")], whole()),
        ([("commit", "committed"), ("abort", "aborted")], whole()),
        ([("outcome", "aborted")], whole()),
    ],
)
def test_an_end_that_does_not_fit_is_found(ends: list[tuple[str, str]], streams: Streams) -> None:
    with pytest.raises(AssertionError, match="transaction 7"):
        Books.of(recorded(*ends).lines).check(streams)
