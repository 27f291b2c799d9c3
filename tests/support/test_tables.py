"""A table runs all of its cases and names those that fail."""

import pytest

from tests.support.tables import table


def failing(*, odd: int, name: str) -> None:
    assert odd % 2, name


def test_every_case_runs_and_each_failure_names_its_case() -> None:
    ran: list[int] = []

    @table("number, odd", [(1, True), pytest.param(2, True, id="two"), (3, True), (4, True)])
    def test(number: int, odd: bool) -> None:
        ran.append(number)
        assert (number % 2 == 1) is odd

    with pytest.raises(ExceptionGroup, match="2 of 4 cases of test failed") as caught:
        test()

    assert ran == [1, 2, 3, 4]
    assert [each.__notes__ for each in caught.value.exceptions] == [["case: two"], ["case: number=4, odd=True"]]


def test_tables_are_stacked() -> None:
    ran: list[tuple[int, str]] = []

    @table("number", [1, 2])
    @table("name", ["a", "b"], ids=["first", "second"])
    def test(number: int, name: str) -> None:
        ran.append((number, name))

    test()

    assert ran == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]


@pytest.mark.asyncio
@table("number", [1, 2])
async def test_an_async_test_has_fixtures_beside_its_table(number: int, tmp_path: object) -> None:
    assert number in (1, 2)
    assert tmp_path is not None


def test_a_table_names_what_it_cannot_use() -> None:
    with pytest.raises(ValueError, match="at least one case"):
        table("number", [])
    with pytest.raises(ValueError, match=r"failing does not have the arguments \['even'\] of its table"):
        table("even", [1])(failing)
