"""The programs in `examples/`, run as their readers run them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace import TAIL, blocking
from millrace.client.testing import TestServer, server

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shop() -> Iterator[TestServer]:
    """A server on which the producer ran."""
    with server() as started:
        example("producer.py", started.address)
        yield started


def example(name: str, *arguments: str) -> str:
    """Run an example and return what it printed; whatever it wrote to standard error is the failure message."""
    finished = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True, text=True, check=False, env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_the_producer_says_where_the_last_event_is() -> None:
    with server() as started:
        assert "1001 orders are durable" in example("producer.py", started.address)


def test_the_tail_reader_reads_every_order_and_says_where_to_resume(shop: TestServer) -> None:
    *lines, last = example("tail_reader.py", shop.address, "1001").splitlines()

    assert len(lines) == 1001
    for customer in range(7):
        numbers = [
            line.partition('"number": ')[2].partition(",")[0]
            for line in lines
            if line.startswith(f"customer-{customer} ")
        ]
        assert numbers == sorted(numbers, key=int)
    assert last.startswith("resume with start=millrace.parse_cut('shop/orders@")


def test_slices_are_read_exactly(shop: TestServer) -> None:
    lines = example("slices.py", shop.address).splitlines()

    assert lines[0] == """between the cuts: ['{"amount": 1}', '{"amount": 2}']"""
    assert "1003 events up to the second cut" in lines[1]


def test_sql_over_a_stream_adds_up(shop: TestServer) -> None:
    lines = example("sql.py", shop.address).splitlines()

    assert [line.split()[0] for line in lines] == [f"customer-{number}" for number in range(7)]
    with blocking.connect(shop.address) as client, client.reader("shop/orders", end=TAIL) as reader:
        assert sum(int(line.split()[1]) for line in lines) == sum(json.loads(event.value)["amount"] for event in reader)


def test_an_elastic_stream_splits_and_merges_and_loses_nothing() -> None:
    """Behaviours 22, 24 and 27, with the scaler of the server."""
    printed = example("elastic_stream.py", "--seconds", "8")

    reader_lines = [line for line in printed.splitlines() if "each key in its order" in line]
    (counts,) = re.findall(r"(\d+) splits, (\d+) merges", printed)
    assert len(reader_lines) == 2
    assert min(map(int, counts)) > 0
    assert printed.count("─┤") + printed.count("┬") > 1


@pytest.mark.spark
def test_spark_counts_the_orders_of_each_customer() -> None:
    with server() as started:
        example("producer.py", started.address)

        printed = example("spark_query.py", started.address)

    assert "1001 orders of 7 customers" in printed
    assert "|customer-0|   144|" in printed


def test_every_example_is_run_here() -> None:
    text = Path(__file__).read_text()
    programs = [path.name for path in EXAMPLES.glob("*.py") if "__main__" in path.read_text()]

    assert len(programs) > 5
    assert all(f'"{name}"' in text for name in programs)


def test_a_reader_of_both_streams_never_misses_a_cent() -> None:
    """Behaviours 28, 62."""
    with server() as started:
        transfers, balance = example("bank_transfer.py", started.address).splitlines()

    committed, events = map(int, re.findall(r"(\d+) of 200 .* in (\d+) events", transfers)[0])
    assert 0 < committed < 200
    assert events == 2 * committed
    looks = re.fullmatch(r"the balance was 0 at each of (\d+) looks, and is 0 now", balance)
    assert looks is not None
    assert int(looks[1]) > 1


@pytest.mark.smoke
def test_a_worker_that_was_killed_processes_each_order_once() -> None:
    """Behaviour 61."""
    with server() as started:
        lines = example("read_process_write.py", started.address).splitlines()

    assert lines == [
        "the first worker was killed: True",
        "the second worker wrote 700 invoices",
        "1000 orders have one invoice each",
    ]


def test_what_was_prepared_is_decided_after_a_crash() -> None:
    """Behaviours 30, 31."""
    with server() as started:
        lines = example("resume_prepared.py", started.address).splitlines()

    assert lines == [
        "order 2: killed before it was paid: True",
        "order 3: killed after it was paid: True",
        "order-2 was not paid: aborted",
        "order-3 was paid: committed",
        "order 1 is paid; order 3 is paid",
    ]
