import json
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from millrace.cli.batch_lines import json_lines, plain_lines
from millrace.client.read.arrow import EVENT_SCHEMA, with_stream


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
    lines = json_lines(with_stream(EVENTS, "a/b")).decode().splitlines()

    assert json.loads(lines[1]) == {
        "value": "", "key": None, "timestamp_us": None, "segment": 1, "offset": 0, "index": 1,
        "headers": {"h": {"base64": "/w=="}}, "stream": "a/b",
    }  # fmt: skip
    assert json_lines(EVENTS.slice(3)) == b""


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
