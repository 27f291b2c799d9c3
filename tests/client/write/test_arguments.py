from typing import Any

import numpy as np
import pytest

from millrace.client.write.arguments import check_size, checked_timestamp, checked_timestamps, headers_by_index, owned
from millrace.model.block_packing import Headers, pack_block
from millrace.model.errors import EventTooLargeError, InvalidArgumentError
from millrace.model.limits import APPEND_SIZE_BYTES_MAX, EVENT_SIZE_BYTES_MAX
from tests.support.tables import table


def test_what_the_caller_may_change_is_copied() -> None:
    value = bytearray(b"before")
    kept = owned(value)
    value[:] = b"after!"
    assert kept == b"before"
    assert owned(memoryview(b"view")) == b"view"


@table("value", ["text", None, 7, [1, 2]])
def test_only_bytes_are_events(value: Any) -> None:
    with pytest.raises(TypeError, match="an event is bytes"):
        owned(value)


@table(("key", "headers"), [(None, None), ("key", None), (None, {"name": b"value"}), ("k" * 100, {"n": b"v" * 9})])
def test_an_event_fits_exactly_where_its_block_does(key: str | None, headers: Headers | None) -> None:
    packed = pack_block([b"x" * 500], keys=key, timestamps_us=1, headers={0: headers} if headers else {})
    check_size(500, key=key, headers=headers, append_size_max=len(packed))
    with pytest.raises(EventTooLargeError, match="this server takes"):
        check_size(500, key=key, headers=headers, append_size_max=len(packed) - 1)


def test_a_value_has_a_bound_of_its_own() -> None:
    check_size(EVENT_SIZE_BYTES_MAX, key=None, headers=None, append_size_max=APPEND_SIZE_BYTES_MAX)
    with pytest.raises(EventTooLargeError, match="an event holds at most"):
        check_size(EVENT_SIZE_BYTES_MAX + 1, key=None, headers=None, append_size_max=APPEND_SIZE_BYTES_MAX)


def test_timestamps_fit_64_bits() -> None:
    for timestamp_us in (-(1 << 63), 0, (1 << 63) - 1):
        checked_timestamp(timestamp_us)
    for timestamp_us in (-(1 << 63) - 1, 1 << 63):
        with pytest.raises(InvalidArgumentError, match="64 bits"):
            checked_timestamp(timestamp_us)
    wrong: Any = 1.5
    with pytest.raises(TypeError, match="integer"):
        checked_timestamp(wrong)


@table(
    ("wrong", "error"),
    [
        (np.zeros((2, 2), dtype=np.int64), "it has 2"),
        (np.array(5), "it has 0"),
        ([[1], [2]], "it has 2"),
        (b"ab", "integer of Unix microseconds, not bytes"),
    ],
)
def test_timestamps_are_a_row_of_integers(wrong: Any, error: str) -> None:
    right: Any = [np.int64(1), 2]
    assert np.asarray(checked_timestamps(right)).tolist() == [1, 2]
    with pytest.raises((InvalidArgumentError, TypeError), match=error):
        checked_timestamps(wrong)


def test_headers_are_those_of_all_events_or_of_each() -> None:
    assert headers_by_index({"n": b"v"}, 2) == {0: {"n": b"v"}, 1: {"n": b"v"}}
    assert headers_by_index([None, {"n": b"v"}, {}], 3) == {1: {"n": b"v"}}
    with pytest.raises(InvalidArgumentError, match="2 headers for 3 events"):
        headers_by_index([None, None], 3)
