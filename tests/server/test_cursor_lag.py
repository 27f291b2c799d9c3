"""How far cursors lag, and what is written to which stream, as the metrics of a real server tell it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client import Metric

import millrace
from millrace.model.address import Address
from millrace.server.app import Server
from millrace.server.console.metrics import OTHERS
from millrace.server.options import ServerOptions
from millrace.server.streams.cursor_lag import CursorLags
from millrace.server.streams.options import MetricsOptions
from millrace.wire import messages as m
from tests.server.streams.containers import streams_in
from tests.support.clock import ManualClock
from tests.support.scrapes import scrape, value_of
from tests.support.servers import server_options
from tests.support.settled_containers import _containers_are_settled
from tests.support.storage import MemoryStorage

__all__ = ["_containers_are_settled"]


def options(folder: Path) -> ServerOptions:
    metrics = MetricsOptions(streams_count_max=2, cursors_count_max=2)
    return replace(server_options(folder, console=Address("127.0.0.1", 0)), metrics=metrics)


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(options(tmp_path)) as server:
        yield server


async def scraped(server: Server) -> dict[str, Metric]:
    return await asyncio.to_thread(scrape, server.console_address)


def rows(families: dict[str, Metric], name: str) -> dict[tuple[str, ...], float]:
    """Return the values by the labels, the stream first."""
    samples = families[name].samples
    return {
        tuple(value for _, value in sorted(sample.labels.items(), reverse=True)): sample.value for sample in samples
    }


async def write(client: "millrace.Client", stream: str, count: int, *, size: int = 1000) -> None:
    async with client.writer(stream) as writer:
        for number in range(count):
            _ = writer.write(bytes(size), key=str(number))
        await writer.flush()


@pytest.mark.asyncio
async def test_a_cursor_lags_by_what_is_after_it(server: Server) -> None:
    config = millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(3))
    async with millrace.connect(server.address) as client:
        await client.create_stream("shop/orders", config, cursors=["billing"])
        assert rows(await scraped(server), "millrace_cursor_lag_bytes")["shop/orders", "billing"] == 0
        await write(client, "shop/orders", 30)
        families = await scraped(server)
        whole = rows(families, "millrace_cursor_lag_bytes")["shop/orders", "billing"]
        assert 30_000 < whole < 40_000
        assert 0 < rows(families, "millrace_cursor_lag_seconds")["shop/orders", "billing"] < 600

        # Over a scaling: what is before the cut is read, also where its segments are replaced.
        cut = await client.stream_cut("shop/orders")
        segments = (await client.stream_info("shop/orders")).segments
        await client.scale_stream("shop/orders", seal=[each.segment_id for each in segments], ranges=[(0.0, 1.0)])
        await write(client, "shop/orders", 10)
        await client.cursors("shop/orders").set("billing", cut)
        families = await scraped(server)
        assert 10_000 < rows(families, "millrace_cursor_lag_bytes")["shop/orders", "billing"] < whole / 2

        await client.cursors("shop/orders").set("billing", await client.stream_cut("shop/orders"))
        families = await scraped(server)
        assert value_of(families, "millrace_cursor_lag_bytes", cursor="billing") == 0
        assert value_of(families, "millrace_cursor_lag_seconds", cursor="billing") == 0

        await client.cursors("shop/orders").forget("billing")
        assert ("shop/orders", "billing") not in rows(await scraped(server), "millrace_cursor_lag_bytes")


@pytest.mark.asyncio
async def test_a_cursor_of_before_the_start_is_known(tmp_path: Path) -> None:
    """A consumer that is gone never moves its cursor again: its lag is what must be seen."""
    async with Server(options(tmp_path)) as server, millrace.connect(server.address) as client:
        await client.create_stream("shop/orders", cursors=["billing"])
        await write(client, "shop/orders", 10)
    async with Server(options(tmp_path)) as server:
        families = await scraped(server)
        assert value_of(families, "millrace_cursor_lag_bytes", cursor="billing") > 10_000
        assert value_of(families, "millrace_stream_written_bytes_total", stream=OTHERS) == 0


@pytest.mark.asyncio
async def test_only_so_many_have_rows_of_their_own(server: Server) -> None:
    async with millrace.connect(server.address) as client:
        for number in range(5):
            await client.create_stream(f"shop/{number}", cursors=[f"c{number}", 'od"d\\'])
        for _ in range(2):
            for number in range(5):
                await write(client, f"shop/{number}", 1, size=100 * (number + 1) ** 3)
            families = await scraped(server)

    lags = rows(families, "millrace_cursor_lag_bytes")
    assert set(lags) == {("shop/4", "c4"), ("shop/4", 'od"d\\'), (OTHERS, OTHERS)}
    assert lags[OTHERS, OTHERS] > 2 * 2 * (100 + 800 + 2700 + 6400)
    sizes, events = (rows(families, f"millrace_stream_written_{unit}_total") for unit in ("bytes", "events"))
    assert set(sizes) == {("shop/3",), ("shop/4",), (OTHERS,)}
    assert 12_500 < sizes["shop/4",] < 13_500
    assert events == {("shop/3",): 1, ("shop/4",): 1, (OTHERS,): 8}


@pytest.mark.asyncio
async def test_what_a_transaction_commits_is_written_to_its_streams(server: Server) -> None:
    async with millrace.connect(server.address) as client:
        await client.create_stream("shop/orders")
        for _ in range(2):
            async with client.transaction("shop/orders") as transaction:
                _ = transaction.write(bytes(1000), key="k")
                _ = transaction.write(bytes(1000), key="k")
            families = await scraped(server)

    assert rows(families, "millrace_stream_written_events_total") == {("shop/orders",): 2, (OTHERS,): 2}


@pytest.mark.asyncio
async def test_streams_that_are_always_written_to_take_turns(tmp_path: Path) -> None:
    """More of them are changed again before each turn than one turn looks at."""
    async with streams_in(tmp_path, storage=MemoryStorage(), clock=ManualClock()) as streams:
        lags = CursorLags(
            streams.opened.container, streams.catalog, uptime=streams.uptime, silent_s=60.0, visited_count_max=2
        )
        made = [
            (await streams.controller.create(f"a/{number}", segment_count=1, configuration="", cursors=["c"]))[0]
            for number in range(5)
        ]
        for _ in range(3):
            for stream in made:
                await streams.write(stream.open_parts[0].segment_id, ["k"])
            lags.found(stream.stream_id for stream in made)
            await lags.measure()

        assert {lag.stream for lag in lags.rows(10)[0]} == {f"a/{number}" for number in range(5)}


@pytest.mark.asyncio
async def test_a_silent_cursor_that_ends_has_no_lag_any_more(tmp_path: Path) -> None:
    """A query in Spark that has ended must not raise an alert for as long as it holds events."""
    async with streams_in(tmp_path, storage=MemoryStorage(), clock=ManualClock()) as streams:
        await streams.uptime.record()
        await streams.controller.create("a/b", segment_count=1, configuration="")
        (segment_id,) = streams.controller.find("a/b").segment_ids
        start = [m.SavedPosition(segment_id, 0, 0)]
        query = m.NamedCut(2, "query", start, 7 * 86_400)
        await streams.controller.save_cuts("a/b", [query, m.NamedCut(2, "billing", start)])

        async def shown() -> set[str]:
            await streams.runner.measure()
            most, others = streams.runner.lags.rows(10)
            return {lag.cursor for lag in (*most, *others)}

        await streams.run(3000)
        assert await shown() == {"query", "billing"}
        await streams.run(3000)
        assert await shown() == {"billing"}
        assert len(streams.controller.find("a/b").cuts) == 2
        await streams.controller.save_cuts("a/b", [query])
        assert await shown() == {"query", "billing"}
