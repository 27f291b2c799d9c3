import io
from dataclasses import replace

from rich.console import Console

from loadtests.accounts import Accounts, Result
from loadtests.report import as_table
from loadtests.workload import Scenario


def result() -> Result:
    books = Accounts(Scenario(name="steady", description="an even flow"))
    books.acked(0, 0, sequence=1, events=1, size=100, latency_s=0.0123)
    books.end()
    return replace(books.result(), duration_s=2.0)


def printed(*results: Result) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(as_table(results))
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def test_the_table_shows_rates_and_percentiles() -> None:
    text = printed(result())

    assert "steady passed" in text
    assert "12.3 ms" in text
    assert "tail" not in text


def test_a_failure_is_explained_below_the_table() -> None:
    text = printed(replace(result(), lost=3, errors=["reader 1: [3] events never came"]))

    assert "steady failed" in text
    assert "3 lost, 0 out of order, 0 errors" in text
    assert "reader 1: [3] events never came" in text


def test_a_busy_generator_is_not_taken_for_a_slow_server() -> None:
    assert "the load generator itself was busy 99%" in printed(replace(result(), generator_share=0.99))
