"""Events as JSON: text as text, all else in base 64."""

import base64

from hypothesis import given
from hypothesis import strategies as st

from millrace.model.event import Event
from millrace.model.event_json import event_json


def test_text_is_text() -> None:
    event = Event("ä\n\0".encode(), "k", 5, 1, 2, 3, {"trace": b"x"})

    assert event_json(event) == {
        "value": "ä\n\0", "key": "k", "timestamp_us": 5, "segment": 1, "offset": 2, "index": 3,
        "headers": {"trace": "x"},
    }  # fmt: skip


def test_what_is_no_text_is_in_base_64() -> None:
    event = Event(b"\xff", None, None, 1, 2, 3, {"raw": b"\xfe"})

    found = event_json(event)

    assert "value" not in found
    assert (found["value_base64"], found["headers"]) == ("/w==", {"raw": {"base64": "/g=="}})
    assert (found["key"], found["timestamp_us"]) == (None, None)


@given(st.binary())
def test_every_value_comes_back(value: bytes) -> None:
    found = event_json(Event(value, None, None, 1, 2, 3))

    text = found.get("value")
    assert (base64.b64decode(found["value_base64"]) if text is None else text.encode()) == value
