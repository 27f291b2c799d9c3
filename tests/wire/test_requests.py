import pytest

from millrace.wire import messages as m
from millrace.wire.errors import ProtocolError
from millrace.wire.requests import UNNUMBERED, OpenRequests, RequestIds


def test_an_answer_ends_a_request_and_not_a_lasting_one() -> None:
    requests = OpenRequests()
    assert (requests.next_id(), requests.next_id()) == (1, 2)
    requests.open(1, "read")
    requests.open(2, "subscription", is_lasting=True)
    assert (requests.count, requests.lasting_count) == (1, 1)

    assert [requests.answer(1), requests.answer(1)] == ["read", None]
    assert [requests.answer(2), requests.answer(2)] == ["subscription", "subscription"]
    assert not requests.is_open(1)
    assert requests.is_open(2)


def test_the_end_of_either_is_the_end() -> None:
    requests = OpenRequests()
    requests.open(1, "read")
    requests.open(2, "subscription", is_lasting=True)

    assert [requests.end(1), requests.end(2)] == ["read", "subscription"]
    assert [requests.end(1), requests.end(2), requests.answer(2)] == [None, None, None]


def test_a_lost_connection_gives_back_every_subject_once() -> None:
    requests = OpenRequests()
    requests.open(2, "subscription", is_lasting=True)
    requests.open(3, "read")

    assert requests.clear() == ["read", "subscription"]
    assert requests.clear() == []


def test_request_ids_rise_from_one() -> None:
    ids = RequestIds()

    with pytest.raises(ProtocolError, match="request id 0 is not above"):
        ids.check(m.Read.type, 0)
    ids.check(m.Read.type, 1)
    ids.check(m.Append.type, 5, count=10)
    for used in (1, 5, 14):
        with pytest.raises(ProtocolError, match="the one before, 14"):
            ids.check(m.Read.type, used)
    ids.check(m.Read.type, 15)


@pytest.mark.parametrize("frame_type", sorted(UNNUMBERED))
def test_frames_that_name_what_exists_are_exempt(frame_type: int) -> None:
    ids = RequestIds()
    ids.check(m.Subscribe.type, 9)

    ids.check(frame_type, 4)

    with pytest.raises(ProtocolError):
        ids.check(m.Read.type, 9)


def test_the_exempt_frames_are_these() -> None:
    assert {m.MESSAGES[number] for number in UNNUMBERED} == {m.Hello, m.Ping, m.Pong, m.Credit, m.Unsubscribe}
