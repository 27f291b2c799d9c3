import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.wire import messages as m
from millrace.wire.append_window import AppendWindow
from millrace.wire.errors import ProtocolError
from millrace.wire.framing import encode
from millrace.wire.limits import APPEND_HEADER_SIZE_BYTES
from tests.support.tables import table


def window(*, bytes_max: int = 1000, count_max: int = 3) -> AppendWindow:
    made: AppendWindow = AppendWindow(bytes_max=bytes_max)
    made.count_max = count_max
    return made


def ack(*entries: tuple[int, int, int, int]) -> memoryview:
    return memoryview(encode(m.AppendAck([m.AppendAckEntry(*entry) for entry in entries]), request_id=99))


def test_a_run_learns_its_offsets_from_the_first_one() -> None:
    """Behaviour 5: acks are cumulative; each append learns the offset of its own first byte."""
    it = window(count_max=9)
    for request_id, size in enumerate((10, 20, 5, 7), start=1):
        it.add(request_id, f"append {request_id}", size)
    assert it.size_bytes == 42 + 4 * APPEND_HEADER_SIZE_BYTES

    assert it.ack(ack((1, 100, 2, 0), (3, 500, 1, 0))) == [("append 1", 100), ("append 2", 110), ("append 3", 500)]
    assert it.ack(ack((4, -1, 1, 1))) == [("append 4", None)]
    assert (len(it), it.size_bytes) == (0, 0)


def test_room_is_bounded_by_count_and_by_bytes() -> None:
    it = window(bytes_max=2000)
    assert it.has_room(5000), "one that is larger than the bound goes alone"
    it.add(1, "a", 1800)
    assert not it.has_room(900)
    assert it.has_room(10)
    it.add(2, "b", 1)
    it.add(3, "c", 1)
    assert not it.has_room(1), "three are as many as the server takes"
    assert it.refuse(2) == "b"
    assert it.refuse(2) is None
    assert it.has_room(1)


def test_nothing_may_be_sent_after_the_first_before_the_server_has_said_how_many() -> None:
    it: AppendWindow = AppendWindow(bytes_max=1000)
    it.add(1, "a", 1)
    assert not it.has_room(1)


@table("entries", [((2, 0, 1, 0),), ((1, 0, 2, 0),), ((1, 0, 1, 0), (1, 0, 1, 0))])
def test_an_ack_of_what_was_not_sent_breaks_the_protocol(entries: tuple[tuple[int, int, int, int], ...]) -> None:
    it = window()
    it.add(1, "a", 1)
    with pytest.raises(ProtocolError, match="not in flight"):
        it.ack(ack(*entries))
    assert it.size_bytes == 1 + APPEND_HEADER_SIZE_BYTES
    assert it.clear() == ["a"], "its outcome is unknown, also if an entry before the wrong one covers it"


def test_an_ack_is_as_long_as_it_says() -> None:
    with pytest.raises(ProtocolError, match="2 entries"):
        window().ack(memoryview(bytes(ack((1, 0, 1, 0), (2, 0, 1, 0)))[:-1]))


@given(st.lists(st.integers(1, 50), max_size=20), st.data())
def test_every_append_comes_back_exactly_once(sizes: list[int], data: st.DataObject) -> None:
    it = window(count_max=100)
    for request_id, size in enumerate(sizes, start=1):
        it.add(request_id, str(request_id), size)
    told: list[str] = []
    next_id = 1
    while next_id <= len(sizes) and data.draw(st.booleans()):
        count = data.draw(st.integers(1, len(sizes) - next_id + 1))
        if data.draw(st.booleans()):
            told += [subject for subject, _ in it.ack(ack((next_id, 0, count, 0)))]
        else:
            told += [it.refuse(request_id) or "" for request_id in range(next_id, next_id + count)]
        next_id += count
    assert told + it.clear() == [str(number) for number in range(1, len(sizes) + 1)]
    assert it.size_bytes == 0
