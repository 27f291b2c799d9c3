"""Let storage and processing follow the load: `python -m applications.in_step`.

The load on a stream rises and falls. The server splits and merges its segments, Spark reads them with a task for
each, and what it writes is the stream of a second query, which is split and merged as well. At the end every event is
in the cooked stream once, in the order of its key, and the counts of the second query are those of the writers.
Segments, tasks and rates are drawn over time into one picture.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import millrace
from millrace.cli.history_picture import Period, periods
from millrace.cli.output import print_done, print_note, print_table
from millrace.examples.load import eager_server, write_load
from millrace.examples.running import Program, ended_by_sigterm

from .picture import STEP_S, Batch, Sample, draw
from .queries import BATCHES, COOKED, RAW, TOTALS

PATIENCE_S: Final = 300.0
ROWS: Final = 12


class Totals:
    """What the second query has told by now: how many events of each key there are."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._changed = asyncio.Condition()

    async def follow(self, client: millrace.Client) -> None:
        """Read for as long as the task lives. The number of the last event of a key must be their count."""
        async with client.reader(TOTALS, start=millrace.HEAD) as reader:
            async for event in reader:
                told = json.loads(event.value)
                if told["count"] != told["last"]:
                    raise SystemExit(f"{told['key']}: {told['count']} events up to number {told['last']}")
                async with self._changed:
                    self.counts[told["key"]] = told["count"]
                    self._changed.notify_all()

    async def wait_for(self, sent: Counter[str]) -> None:
        """Wait until all that was sent is counted."""

        def is_there() -> bool:
            return all(self.counts[key] >= count for key, count in sent.items())

        try:
            async with asyncio.timeout(PATIENCE_S), self._changed:
                await self._changed.wait_for(is_there)
        except TimeoutError:
            raise SystemExit(
                f"{self.counts.total()} of {sent.total()} events were counted within {PATIENCE_S:g} s"
            ) from None
        if self.counts != sent:
            raise SystemExit("some keys were counted that were not written, or more often")


async def sample(sent: Counter[str], totals: Totals, samples: list[Sample]) -> None:
    """Note again and again how much is written and counted."""
    while True:
        samples.append(Sample(time.time(), sent.total(), totals.counts.total()))
        await asyncio.sleep(STEP_S)


async def check_cooked(client: millrace.Client) -> Counter[str]:
    """Return how many events of each key were cooked; each must be the one after that before it."""
    seen: Counter[str] = Counter()
    async with client.reader(COOKED, start=millrace.HEAD, end=millrace.TAIL) as reader:
        async for event in reader:
            number, key = json.loads(event.value)["number"], event.key or ""
            if number != seen[key] + 1:
                raise SystemExit(f"{key}: event {number} came after event {seen[key]}")
            seen[key] = number
    return seen


def open_segments(stream: Sequence[Period], at_s: float) -> int:
    """Return how many segments were open at a moment."""
    return next((len(each.open_segments) for each in reversed(stream) if each.epoch.started_us <= at_s * 1e6), 0)


def show(streams: dict[str, list[Period]], batches: Sequence[Batch], samples: Sequence[Sample]) -> None:
    """Print what the picture shows, in a few rows."""
    columns = ("until", "written/s", "counted/s", "raw segments", "tasks", "cooked segments", "tasks")
    rows: list[tuple[object, ...]] = []
    step = max(1, len(samples) // ROWS)
    for first, last in zip(samples[::step], samples[step::step], strict=False):
        took_s = last.at_s - first.at_s
        tasks = [
            max(
                (each.tasks for each in batches if each.query == query and first.at_s <= each.began_s < last.at_s),
                default=0,
            )
            for query in ("cook", "count")
        ]
        rows.append(
            (
                f"{last.at_s - samples[0].at_s:.0f} s",
                f"{(last.written - first.written) / took_s:,.0f}",
                f"{(last.counted - first.counted) / took_s:,.0f}",
                open_segments(streams[RAW], last.at_s), tasks[0], open_segments(streams[COOKED], last.at_s), tasks[1],
            )
        )  # fmt: skip
    print_table(columns, rows, right=columns)


async def run(address: str, folder: Path, *, duration_s: float, target_per_s: int, picture: Path) -> None:
    """Write the load, follow what becomes of it, and check and draw that."""
    sent: Counter[str] = Counter()
    samples: list[Sample] = []
    totals = Totals()
    async with millrace.connect(address) as client:
        elastic = millrace.StreamConfig(scaling=millrace.ScalingPolicy.by_events_per_s(target_per_s))
        for name in (RAW, COOKED):
            if not await client.create_stream(name, elastic):
                raise SystemExit(f"{name} is there already; delete it first: millrace stream delete --seal {name}")
        await client.create_stream(TOTALS)
        with Program(f"{__package__}.queries", address, str(folder), log=folder / "spark.log"):
            async with asyncio.TaskGroup() as tasks:
                following = [tasks.create_task(totals.follow(client))]
                async with client.writer(RAW) as writer:
                    sent["first"] += 1
                    await writer.write(b"1", key="first")
                await totals.wait_for(sent)  # until Spark has started
                print_note(f"a segment is meant to take {target_per_s} events per second; both queries run")
                following.append(tasks.create_task(sample(sent, totals, samples)))
                await asyncio.gather(
                    *(
                        write_load(client, RAW, name, rate_per_s=target_per_s / 2, duration_s=duration_s, sent=sent)
                        for name in ("a", "b")
                    )
                )
                await totals.wait_for(sent)
                for task in following:
                    task.cancel()
        samples.append(Sample(time.time(), sent.total(), totals.counts.total()))
        if await check_cooked(client) != sent:
            raise SystemExit("the cooked stream does not have the events that were written")
        end_us = time.time_ns() // 1000
        streams = {name: periods(await client.stream_history(name), end_us=end_us) for name in (RAW, COOKED)}
    with (folder / BATCHES).open() as lines:
        batches = [Batch.of(json.loads(line)) for line in lines]
    show(streams, batches, samples)
    draw(picture, raw=streams[RAW], batches=batches, samples=samples)
    print_done(f"all {sent.total():,} events were cooked once, each key in its order, and counted once; see {picture}")


@ended_by_sigterm()
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m applications.in_step", description=__doc__)
    parser.add_argument("--address", help="of a server, whose own patience holds; without it one is started")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long the load lasts (%(default)s)")
    parser.add_argument("--target", type=int, default=300, help="events per second and segment (%(default)s)")
    parser.add_argument("--picture", type=Path, default=Path("scaling-in-step.svg"), help="(%(default)s)")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        address = options.address or stack.enter_context(eager_server(options.seconds))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = run(address, folder, duration_s=options.seconds, target_per_s=options.target, picture=options.picture)
        asyncio.run(running)


if __name__ == "__main__":
    main()
