"""Segments and tasks follow a load; what comes out at the end of two queries is what was written."""

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import millrace
from applications.in_step import __main__ as command
from applications.in_step.picture import Batch, Sample, draw
from applications.in_step.queries import COOKED, TOTALS
from millrace.cli.history_picture import Period
from millrace.client.testing import server
from millrace.model.key_range import KEY_SPACE, KeyRange
from millrace.model.lineage import Epoch

pytestmark = pytest.mark.slow


@pytest.mark.spark
def test_segments_and_tasks_follow_the_load(tmp_path: Path) -> None:
    """Behaviours 22, 24, 55 and 57. As a process of its own: Spark stays in its process until that ends."""
    picture = tmp_path / "picture.svg"
    program = [sys.executable, "-m", "applications.in_step", "--seconds", "30", "--picture", str(picture)]
    finished = subprocess.run(program, capture_output=True, text=True, check=False)

    assert finished.returncode == 0, finished.stdout + finished.stderr
    header, *rows = (line.split() for line in finished.stdout.splitlines() if " s " in line or "until" in line)
    assert header[0] == "until"
    segments, tasks = ([int(row[column]) for row in rows if len(row) == 8] for column in (4, 5))
    assert max(segments) > segments[0]  # split
    assert max(segments) > segments[-1]  # merged
    assert max(tasks) > 1
    assert "were cooked once, each key in its order, and counted once" in finished.stderr
    assert "<svg" in picture.read_text()


async def told(values: dict[str, list[bytes]], stream: str) -> str:
    """Write events of keys into a stream; return what the checks of the command say of it."""
    with server() as started:
        async with millrace.connect(started.address) as client:
            for name in (COOKED, TOTALS):
                await client.create_stream(name)
            async with client.writer(stream) as writer:
                for key, events in values.items():
                    await writer.write_many(events, key=key)
            try:
                if stream == COOKED:
                    return repr(await command.check_cooked(client))
                async with asyncio.timeout(20):
                    await command.Totals().follow(client)
            except SystemExit as error:
                return str(error)
    return "nothing"


def numbers(*each: int) -> list[bytes]:
    return [b'{"number": %d, "segment": 1}' % number for number in each]


@pytest.mark.parametrize(
    ("events", "says"),
    [
        (numbers(1, 2, 3), repr(Counter({"a": 3}))),
        (numbers(1, 3), "a: event 3 came after event 1"),
        (numbers(1, 2, 2), "a: event 2 came after event 2"),
        (numbers(2, 1), "a: event 2 came after event 0"),
    ],
)
def test_a_gap_or_a_repeat_in_the_cooked_stream_is_told(events: list[bytes], says: str) -> None:
    assert asyncio.run(told({"a": events}, COOKED)) == says


def test_a_count_that_is_not_the_last_number_is_told() -> None:
    events = [b'{"key": "a", "count": 1, "last": 1}', b'{"key": "a", "count": 3, "last": 2}']

    assert asyncio.run(told({"a": events}, TOTALS)) == "a: 3 events up to number 2"


def test_the_picture_is_one_of_the_format_that_its_name_says(tmp_path: Path) -> None:
    whole = KeyRange(0, KEY_SPACE)
    period = Period(
        Epoch(number=0, started_us=1_000_000, cause="created", sealed_ids=(), created=((1, whole),)),
        9_000_000,
        ((1, whole),),
        (),
    )
    samples = [Sample(1.0, 0, 0), Sample(2.0, 10, 0), Sample(3.0, 20, 20)]

    draw(tmp_path / "a.png", raw=[period], batches=[Batch("cook", 2.0, 0.5, 20, 1)], samples=samples)

    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
