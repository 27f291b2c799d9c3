import pytest

from millrace.model.errors import InvalidArgumentError
from millrace.server.console.requests import number_of, parameters_of
from tests.support.tables import table


@table("text", ["", "-1", "+1", " 1", "1_0", "0", "11", "1.0", "1e1", "²", "١", "9" * 5000])
def test_what_is_no_number_in_its_bounds_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="limit must be a whole number from 1 to 10") as refused:
        number_of({"limit": text}, "limit", default=5, low=1, high=10)
    assert len(str(refused.value)) < 100


def test_a_number_is_taken_and_its_default_where_there_is_none() -> None:
    assert number_of({"limit": "10"}, "limit", default=5, low=1, high=10) == 10
    assert number_of({"limit": "007"}, "limit", default=5, low=1, high=10) == 7
    assert number_of({}, "limit", default=5, low=1, high=10) == 5


@table(
    ("query", "told"),
    [
        ("a", "NAME=VALUE"),
        ("a=%ff", "UTF-8"),
        ("a=1&a=2", "give it once"),
        ("c=1", "it takes a, b"),
        ("%3Cb%3E=", "<b>"),
    ],
)
def test_a_query_that_is_wrong_is_told_what_would_be_right(query: str, told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        parameters_of(query, names=("a", "b"), subject="a thing")


def test_a_query_is_read() -> None:
    assert parameters_of("", names=(), subject="a thing") == {}
    assert parameters_of("a=&b=%C3%A4+%26", names=("a", "b"), subject="a thing") == {"a": "", "b": "ä &"}
