"""What is sent is what a client that follows the standard reads."""

import base64
import json

from hypothesis import given
from hypothesis import strategies as st

from applications.change_feed.messages import Message, Messages
from millrace.model.event import Event
from millrace.model.event_json import event_json
from millrace.model.limits import EVENT_SIZE_BYTES_MAX
from millrace.server.console.sse import KEEP_ALIVE, encode_message
from tests.support.tables import table

EVENTS = st.tuples(
    st.binary() | st.text().map(str.encode) | st.sampled_from([b"\0", b"\r\n\r\n", b"data: x\n\n", b"\xff\xfe"]),
    st.none() | st.text(),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.integers(1, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.dictionaries(st.text(), st.binary()),
).map(lambda fields: Event(*fields))


def read(sent: bytes, *, last_id: str = "") -> list[Message]:
    return list(Messages(last_id).read(sent.splitlines(keepends=True)))


def value_of(content: dict[str, object]) -> bytes:
    text = content.get("value")
    return base64.b64decode(str(content["value_base64"])) if text is None else str(text).encode()


@given(st.lists(EVENTS, max_size=4))
def test_every_event_arrives_as_it_was(events: list[Event]) -> None:
    """Line breaks, NUL and what is no UTF-8 in values, keys and headers, whatever is taken for the end of a line."""
    sent = b"".join(encode_message(event_json(event), last_id=f"a/b@1:{n}.0") for n, event in enumerate(events))

    received = read(sent)

    assert [message.last_id for message in received] == [f"a/b@1:{n}.0" for n in range(len(events))]
    for event, message in zip(events, received, strict=True):
        content = message.content()
        assert message.event == "message"
        assert value_of(content) == event.value
        assert [content[name] for name in ("key", "timestamp_us", "segment", "offset", "index")] == list(event[1:6])
        assert set(content["headers"]) == set(event.headers)
    # A client may split lines where Python does.
    assert sent.decode("ascii").splitlines() == sent.decode("ascii").split("\n")[:-1]


@table("value", [b"\0" * EVENT_SIZE_BYTES_MAX, b"\xff" * EVENT_SIZE_BYTES_MAX, b""])
def test_the_largest_and_the_smallest_value_arrive(value: bytes) -> None:
    event = Event(value, "k", 1, 1, 0, 0)

    (message,) = read(encode_message(event_json(event), last_id="x"))

    assert value_of(message.content()) == value


def test_a_kind_a_place_and_a_time_to_wait_are_said() -> None:
    assert encode_message({"a": 1}, last_id="p", event="end", retry_ms=5) == (
        b'id: p\nevent: end\nretry: 5\ndata: {"a": 1}\n\n'
    )
    assert read(encode_message({"a": 1}, last_id="p", event="end")) == [Message("p", "end", json.dumps({"a": 1}))]


def test_a_place_without_content_is_noted_and_no_message() -> None:
    messages = Messages("before")

    assert list(messages.read([*KEEP_ALIVE.splitlines(keepends=True)])) == []
    assert messages.last_id == "before"
    assert list(messages.read(encode_message(last_id="after").splitlines(keepends=True))) == []
    assert messages.last_id == "after"
