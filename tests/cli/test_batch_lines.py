import json
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.cli.batch_lines import json_lines, plain_lines
from millrace.client.read.arrow import EVENT_SCHEMA, with_stream
from millrace.model.event import Event
from millrace.model.event_json import event_json


def batch(*events: tuple[Any, ...]) -> pa.RecordBatch:
    columns = zip(*events, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, EVENT_SCHEMA, strict=True)], schema=EVENT_SCHEMA
    )


EVENTS = batch(
    (b"one", "k", 17, 1, 0, 0, []), (b"", None, None, 1, 0, 1, [("h", b"\xff")]), (b"\xfe\n", "a\tb", 18, 2, 80, 0, [])
)


def test_each_value_is_a_line() -> None:
    assert bytes(plain_lines(EVENTS, with_keys=False, with_names=True)) == b"one\n\n\xfe\n\n"
    assert bytes(plain_lines(EVENTS.slice(1, 1), with_keys=False, with_names=False)) == b"\n"
    assert bytes(plain_lines(EVENTS.slice(3), with_keys=True, with_names=True)) == b""


def test_stream_and_key_come_before_the_value() -> None:
    lines = plain_lines(with_stream(EVENTS, "a/b"), with_keys=True, with_names=True)

    assert bytes(lines) == b"a/b\tk\tone\na/b\t\t\na/b\ta\\tb\t\xfe\n\n"


def test_as_json_an_event_is_an_object() -> None:
    lines = bytes(json_lines(with_stream(EVENTS, "a/b"))).decode().splitlines()

    assert json.loads(lines[1]) == {
        "value": "", "key": None, "timestamp_us": None, "segment": 1, "offset": 0, "index": 1,
        "headers": {"h": {"base64": "/w=="}}, "stream": "a/b",
    }  # fmt: skip
    assert json_lines(EVENTS.slice(3)) == b""


EVENT = st.tuples(
    st.one_of(st.binary(max_size=8), st.text(st.characters(max_codepoint=0x100), max_size=8).map(str.encode)),
    st.none() | st.text(max_size=8),
    st.none() | st.integers(-(2**40), 2**50),
    st.integers(1, 2**62), st.integers(0, 2**62), st.integers(0, 2**31 - 1),
    st.just([])
    | st.dictionaries(st.text(max_size=4), st.binary(max_size=4), max_size=2).map(lambda each: list(each.items())),
)  # fmt: skip


@given(st.lists(EVENT, min_size=1, max_size=5), st.integers(0, 2))
def test_the_json_of_arrow_is_that_of_python(events: list[Any], start: int) -> None:
    wanted = [event_json(Event(*(*each[:6], dict(each[6])))) for each in events[start:]]

    lines = bytes(json_lines(batch(*events).slice(start))).decode()

    assert lines == "".join(json.dumps(each, separators=(",", ":"), ensure_ascii=False) + "\n" for each in wanted)


def test_every_character_is_escaped_as_json_has_it() -> None:
    text = "".join(map(chr, [*range(0x80), 0x2028, 0x1F600]))

    (line,) = bytes(json_lines(batch((text.encode(), text, None, 1, 0, 0, [])))).decode().split("\n")[:-1]

    assert (json.loads(line)["value"], json.loads(line)["key"]) == (text, text)


def test_as_json_an_event_of_text_costs_no_step_of_python() -> None:
    few, many = (batch(*[(b'{"a":\t1}', 'a"b', 17, 1, 0, 0, [])] * count) for count in (10, 1000))

    assert steps(lambda: json_lines(few)) == steps(lambda: json_lines(many))


@pytest.mark.parametrize("with_keys", [False, True])
def test_no_event_costs_a_step_of_python(with_keys: bool) -> None:
    few, many = (batch(*[(b"value", "a\tb", 17, 1, 0, 0, [])] * count) for count in (10, 10_000))

    assert steps(lambda: plain_lines(few, with_keys=with_keys, with_names=False)) == steps(
        lambda: plain_lines(many, with_keys=with_keys, with_names=False)
    )


def steps(work: Callable[[], object]) -> int:
    """Return how many lines of Python some work carries out."""
    count = 0

    def trace(_frame: Any, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    work()  # what is imported at the first time is not counted
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
