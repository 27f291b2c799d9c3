import pickle

import pytest

from millrace.model.block_packing import pack_block
from millrace.model.event import Event, EventPosition
from millrace.model.event_block import unpack_block


def test_an_event_has_its_fields_and_no_methods_of_tuples() -> None:
    event = Event(b"v", "k", 5, segment=7, offset=64, index=3, headers={"a": b"1"})

    assert (event.value, event.key, event.timestamp_us, event.segment, event.offset, event.index) == (
        b"v", "k", 5, 7, 64, 3,
    )  # fmt: skip
    assert event.headers == {"a": b"1"}
    assert event.position == EventPosition(7, 64, 3)
    assert not hasattr(event, "count")
    with pytest.raises(AttributeError, match="no count"):
        _ = event.count


def test_an_event_without_headers_has_none_of_them() -> None:
    event = Event(b"v", None, None, 7, 64, 3)

    assert event.headers == {}
    event.headers["not"] = b"kept"
    assert event.headers == {}
    assert len({event, Event(b"v", None, None, 7, 64, 3)}) == 1


def test_an_event_with_headers_is_hashed_without_them() -> None:
    event = Event(b"v", "k", 5, 7, 64, 0, {"a": b"1"})

    assert {event: 1}[Event(b"v", "k", 5, 7, 64, 0, {"a": b"1"})] == 1
    assert len({event, event._replace(headers={"a": b"2"})}) == 2
    assert hash(event._replace(headers=None)) == hash((b"v", "k", 5, 7, 64, 0, None))


def test_an_event_is_replaced_field_by_field() -> None:
    event = Event(b"v", "k", 5, 7, 64, 0, {"a": b"1"})

    assert event._replace(value=b"w", index=3) == Event(b"w", "k", 5, 7, 64, 3, {"a": b"1"})
    assert type(event._replace()) is Event
    with pytest.raises(TypeError):
        event._replace(length=1)


def test_an_event_is_shown_compared_and_pickled() -> None:
    event = Event(b"v", "k", 5, 7, 64, 0, {"a": b"1"})
    (read,) = unpack_block(pack_block([b"v"], keys="k", timestamps_us=5, headers={0: {"a": b"1"}})).events(
        segment_id=7, offset=64
    )

    assert read == event
    assert type(read) is Event
    assert pickle.loads(pickle.dumps(event)) == event
    assert repr(event) == (
        "Event(value=b'v', key='k', timestamp_us=5, segment=7, offset=64, index=0, headers={'a': b'1'})"
    )
