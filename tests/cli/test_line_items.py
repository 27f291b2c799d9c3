import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.cli.line_items import Item, json_item, keyed_item
from millrace.model.event import Event
from millrace.model.event_json import event_json
from tests.support.tables import table

HEADERS = st.dictionaries(st.text(max_size=3), st.binary(max_size=4), max_size=3)


@given(
    st.binary(max_size=9), st.none() | st.text(max_size=5), st.none() | st.integers(-(1 << 63), (1 << 63) - 1), HEADERS
)
def test_an_event_as_json_is_read_back(
    value: bytes, key: str | None, time: int | None, headers: dict[str, bytes]
) -> None:
    line = json.dumps(event_json(Event(value, key, time, 1, 2, 3, headers))).encode()

    assert json_item(line) == Item(value, key, time, headers)


@table(
    "line",
    ["[]", "{", "{}", '{"value": 1}', '{"value": "a", "value_base64": "YQ=="}', '{"value_base64": "?"}',
     '{"value": "a", "key": 1}', '{"value": "a", "timestamp_us": "now"}', '{"value": "a", "timestamp_us": true}',
     '{"value": "a", "timestamp_us": 9223372036854775808}', '{"value": "a", "timestamp_us": %s}' % ("9" * 5_000),
     r'{"value": "\ud800"}', r'{"value": "a", "key": "\ud800"}', r'{"value": "a", "headers": {"\ud800": "b"}}',
     '{"value": "a", "headers": []}', '{"value": "a", "headers": {"h": {"base64": 1}}}'],
)  # fmt: skip
def test_json_that_says_no_event_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"^(is|has) "):
        json_item(line.encode())


def test_a_key_is_before_the_first_tab() -> None:
    assert keyed_item(b"a\\tb\tvalue\tmore") == Item(b"value\tmore", "a\tb")
    assert keyed_item(b"\tvalue") == Item(b"value", None)
    with pytest.raises(ValueError, match="not UTF-8"):
        keyed_item(b"\xff\tvalue")
