"""Observe derived state over HTTP: `python -m applications.change_feed`.

Recorded measurements of six sensors are written to a stream. A job keeps the state of each sensor in a second one.
Three observers follow that stream over HTTP, as a browser would: one from the first change to the last, one that leaves
again and again and comes back to where it was, and curl. Meanwhile the stream is split, and the server is killed and
started again. At the end each observer has seen each change once, and holds the state exactly.

With `--browser` nothing is killed: measurements come slowly, and a page shows the state live.
"""

import argparse
import asyncio
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import millrace
from applications.sensors.recorded import READINGS, Reading, recorded, write
from millrace.cli.output import print_done, print_note, print_table
from millrace.client.testing import SETTINGS_SMALL, TestServer, server
from millrace.examples.running import ended_by_sigterm

from .observing import Observer, WrongError, by_curl, by_http
from .page import page_of, page_server
from .state import STATE, State, create, derive, latest, truth

COUNT: Final = 6000
"""So many measurements, the newest ones, are enough."""
LEAVES_AFTER: Final = 250
PAUSE_S: Final = 0.1
CONSOLE: Final = "127.0.0.1:0"


def feed_url(running: TestServer) -> str:
    """Return the address of the feed of all changes."""
    return f"http://{running.console_address}/streams/{STATE}/events?from=head"


def observers_of(url: str) -> dict[str, Observer]:
    """Return observers of a feed, by what they are."""
    observers = {
        "one that stays": Observer(url, by_http),
        "one that leaves": Observer(url, by_http, leaves_after=LEAVES_AFTER),
    }
    if shutil.which("curl"):
        observers["curl"] = Observer(url, by_curl)
    return observers


async def write_and_disturb(client: millrace.Client, running: TestServer, readings: list[Reading]) -> None:
    """Write all measurements; split the state's segments, and kill the server, in between."""
    part = len(readings) // 3
    await write(client, readings[:part])
    segments = (await client.stream_info(STATE)).open_segments
    ranges = [(0.0, 0.3), (0.3, 0.6), (0.6, 1.0)]
    await client.scale_stream(STATE, seal=[each.segment_id for each in segments], ranges=ranges)
    print_done(f"{len(segments)} segments of the state were replaced by {len(ranges)}")
    async with client.reader(STATE, start=millrace.TAIL) as reader:
        writing = asyncio.create_task(write(client, readings[part:]))
        await anext(reader)  # in the middle of it all
        await asyncio.to_thread(running.kill)
        await asyncio.to_thread(running.start)
        print_done("the server was killed, and has started again")
        await writing
    await client.seal_stream(READINGS)


async def _follow(observer: Observer, running: TestServer) -> None:
    """Follow the state in a thread. Cancelling ends the server, and so the feed that the thread reads."""
    try:
        await asyncio.to_thread(observer.follow)
    except asyncio.CancelledError:
        observer.stop()
        running.kill()
        raise


async def observe(running: TestServer, readings: list[Reading]) -> dict[str, Observer]:
    """Let observers follow the state from the first measurement to the last one; return them.

    Raises:
        SystemExit: one has seen something else than each change once.
    """
    observers = observers_of(feed_url(running))
    async with millrace.connect(running.address) as client:
        await create(client)
        try:
            async with asyncio.TaskGroup() as group:
                for observer in observers.values():
                    group.create_task(_follow(observer, running))
                group.create_task(derive(client))
                group.create_task(write_and_disturb(client, running, readings))
        except* WrongError as errors:
            raise SystemExit(str(errors.exceptions[0])) from None
        check(observers, truth(readings), await latest(client), count=len(readings))
    return observers


def check(observers: Mapping[str, Observer], expected: State, derived: State, *, count: int) -> None:
    """Compare what was derived and observed with what is true.

    Raises:
        SystemExit: it is something else.
    """
    if derived != expected:
        raise SystemExit(f"the state is {derived}, and should be {expected}")
    for name, observer in observers.items():
        if observer.state != derived or observer.changes != count:
            raise SystemExit(f"{name} has seen {observer.changes} of {count} changes, and holds {observer.state}")


def show(observers: Mapping[str, Observer], state: State) -> None:
    """Print what was observed."""
    columns = ("sensor", "changes", "last", "lowest", "highest")
    rows = [(name, each.count, each.value, each.low, each.high) for name, each in sorted(state.items())]
    print_table(columns, rows, right=columns[1:])
    counts = [(name, each.changes, each.connections) for name, each in observers.items()]
    print_table(("observer", "changes", "connections"), counts, right=("changes", "connections"))


async def write_slowly(running: TestServer, readings: list[Reading]) -> None:
    """Derive the state of measurements that come a few at a time."""
    async with millrace.connect(running.address) as client:
        await create(client)
        deriving = asyncio.create_task(derive(client))
        for reading in readings:
            await write(client, [reading])
            await asyncio.sleep(PAUSE_S)
        await client.seal_stream(READINGS)
        await deriving


def show_in_browser(readings: list[Reading]) -> None:
    """Let people look at the state in their browser, until Ctrl-C."""
    with page_server() as origin:
        settings = {**SETTINGS_SMALL, "MILLRACE_FEED_ORIGINS": origin}
        with server(settings=settings, console=CONSOLE) as running:
            feed = feed_url(running)
            print_note(
                f"look at {page_of(origin, feed)} in a browser, or at the feed: curl -N '{feed}'; Ctrl-C ends it"
            )
            with suppress(KeyboardInterrupt):
                asyncio.run(write_slowly(running, readings))


@ended_by_sigterm()
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m applications.change_feed", description=__doc__)
    parser.add_argument("--browser", action="store_true", help="show the state on a page instead, until Ctrl-C")
    options = parser.parse_args(arguments)
    readings = recorded()[-COUNT:]
    if options.browser:
        show_in_browser(readings)
        return
    with server(console=CONSOLE) as running:
        observers = asyncio.run(observe(running, readings))
    show(observers, truth(readings))
    print_done(f"{len(observers)} observers have seen each of {len(readings):,} changes once, and hold the state")


if __name__ == "__main__":
    main()
