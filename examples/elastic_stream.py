"""Watch a stream split and merge its segments as the load changes: `python examples/elastic_stream.py [ADDRESS]`.

Two writers drive the load up and down for some minutes. The server splits segments while more comes than one is meant
to take, there where the load is, and merges neighbours when it slows. A reader follows live, another one reads
everything once more at the end; both check that the events of each key are complete and in order. Then the segments are
drawn over time. Without an address it starts a server of its own, whose intervals suit the seconds that it is to take.
"""

import argparse
import asyncio
import contextlib
import time
from collections import Counter

import millrace
from millrace.cli.history import print_picture
from millrace.cli.history_picture import change_text
from millrace.examples.load import PHASES, USUAL_S, eager_server, write_load
from millrace.examples.running import ended_by_sigterm

STREAM = "demo/elastic"


async def check(client: millrace.Client, *, end: millrace.Cut | None) -> Counter[str]:
    """Read the stream, and return how many events of each key came; each must be the one after that before it."""
    seen: Counter[str] = Counter()
    async with client.reader(STREAM, start=millrace.HEAD, end=end) as reader:
        async for event in reader:
            key = event.key or ""
            if int(event.value) != seen[key] + 1:
                raise SystemExit(f"{key}: event {event.value.decode()} came after event {seen[key]}")
            seen[key] += 1
    return seen


async def watch(client: millrace.Client, sent: Counter[str]) -> None:
    """Say what the server decides, and why."""
    known, started_s = 1, time.monotonic()
    while True:
        await asyncio.sleep(0.5)
        epochs = await client.stream_history(STREAM)
        for epoch in epochs[known:]:
            count = sum(len(each.created) - len(each.sealed_ids) for each in epochs[: epoch.number + 1])
            print(
                f"{time.monotonic() - started_s:6.1f} s  {sent.total():9,} events  {count:2} segments  "
                f"{change_text(epoch)}: {epoch.cause.partition(': ')[2] or epoch.cause}",
                flush=True,
            )
        known = len(epochs)


async def show(address: str, *, duration_s: float, target_per_s: int) -> None:
    async with millrace.connect(address) as client:
        config = millrace.StreamConfig(scaling=millrace.ScalingPolicy.by_events_per_s(target_per_s))
        if not await client.create_stream(STREAM, config):
            raise SystemExit(f"{STREAM} is there already; delete it first: millrace stream delete --seal {STREAM}")
        print(f"one segment is meant to take {target_per_s} events per second; the load: ", end="")
        print(", ".join(f"{load * target_per_s:,.0f}/s until {until * duration_s:.0f} s" for until, load in PHASES))

        sent: Counter[str] = Counter()
        live = asyncio.create_task(check(client, end=None))
        watching = asyncio.create_task(watch(client, sent))
        rate_per_s = target_per_s / 2
        await asyncio.gather(
            *(
                write_load(client, STREAM, name, rate_per_s=rate_per_s, duration_s=duration_s, sent=sent)
                for name in ("a", "b")
            )
        )
        ended_us = time.time_ns() // 1000
        watching.cancel()
        await client.seal_stream(STREAM)  # so that the live reader ends

        for reader, seen in (("live", await live), ("later", await check(client, end=millrace.TAIL))):
            if seen != sent:
                raise SystemExit(f"the {reader} reader got {seen.total()} of {sent.total()} events")
            print(f"the {reader} reader got all {seen.total():,} events of {len(seen)} keys, each key in its order")

        epochs = await client.stream_history(STREAM)
        splits = sum(len(epoch.created) > len(epoch.sealed_ids) > 0 for epoch in epochs)
        merges = sum(len(epoch.created) < len(epoch.sealed_ids) for epoch in epochs)
        print(f"{splits} splits, {merges} merges; the segments over time, the keys across:\n")
        print_picture(epochs, end_us=ended_us, end_text="end")


@ended_by_sigterm()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", nargs="?", help="a server that runs; its own patience holds then")
    parser.add_argument("--seconds", type=float, default=USUAL_S, help="how long the load lasts (%(default)s)")
    parser.add_argument("--target", type=int, default=300, help="events per second and segment (%(default)s)")
    options = parser.parse_args()
    with contextlib.nullcontext(options.address) if options.address else eager_server(options.seconds) as address:
        asyncio.run(show(address, duration_s=options.seconds, target_per_s=options.target))


if __name__ == "__main__":
    main()
