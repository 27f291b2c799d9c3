from millrace.wire.requests import OpenRequests


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
