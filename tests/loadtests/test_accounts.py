import json

from loadtests.accounts import Accounts, Result
from loadtests.workload import Scenario, Violation


def accounts() -> Accounts:
    books = Accounts(Scenario(name="test", description="for the test"))
    books.begin()
    for sequence in (1, 2, 3):
        books.acked(0, 1, sequence=sequence, events=1, size=100, latency_s=0.002)
    return books


def test_a_reader_that_saw_everything_leaves_a_clean_result() -> None:
    books = accounts()
    books.close_reader({(0, 1): 3}, where="reader")
    books.end()
    result = books.result()

    assert result.passed
    assert (result.appended_events, result.appended_bytes, result.append.count) == (3, 300, 3)


def test_events_that_were_read_before_their_ack_are_not_missing() -> None:
    assert accounts().missing({(0, 1): 4}) == {}


def test_acknowledged_events_that_never_came_are_lost() -> None:
    books = accounts()
    books.close_reader({(0, 1): 1}, where="reader 7")
    result = books.result()

    assert not result.passed
    assert result.lost == 2
    assert "reader 7" in result.errors[0]


def test_violations_count_lost_and_disordered_events() -> None:
    books = accounts()
    books.violations([Violation(0, 1, expected=4, found=9), Violation(0, 1, expected=10, found=2)], where="reader")
    result = books.result()

    assert (result.lost, result.disordered, result.passed) == (5, 1, False)


def test_errors_are_all_counted_and_the_first_kept() -> None:
    books = accounts()
    for number in range(1000):
        books.error(f"error {number}")
    result = books.result()

    assert result.error_count == 1000
    assert result.errors[0] == "error 0"
    assert len(result.errors) < 100


def test_a_result_survives_its_file() -> None:
    books = accounts()
    books.end()
    result = books.result()

    assert Result.from_json(json.loads(json.dumps(result.as_json()))) == result
