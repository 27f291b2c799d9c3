"""How long requests take, as the metrics tell it."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client.core import Metric

from millrace.model.address import Address
from millrace.server.app import Server
from millrace.server.front.latency import Latency, RequestTimer
from millrace.server.host.metrics import Histogram
from millrace.wire import messages as m
from tests.support.clock import ManualClock
from tests.support.protocol import Peer
from tests.support.scrapes import scrape, value_of
from tests.support.servers import server_options


class Measured:
    """What is measured of one connection."""

    def __init__(self) -> None:
        self.clock = ManualClock(monotonic_s=0.0)
        self.histogram = Histogram("seconds", "Time.", label="type", bounds=(0.15, 1.5))
        self.latency = Latency(self.clock, self.histogram)

    def arrive(self, count: int) -> None:
        self.latency.received_s = self.clock.monotonic_s()
        self.latency.appends_taken(count)

    def told(self, name: str) -> tuple[object, ...]:
        """Return how many of a type were below 0.15 s, below 1.5 s, and all, and the sum."""
        series = self.histogram.all_series()[name]
        return (*dict(series.buckets()).values(), series.sum)


@pytest.mark.asyncio
async def test_each_append_counts_from_its_own_arrival() -> None:
    measured = Measured()
    measured.arrive(2)
    measured.arrive(1)
    await measured.clock.advance(1.0)
    measured.arrive(3)
    measured.latency.appends_told(2)
    await measured.clock.advance(0.1)
    measured.latency.appends_told(3)
    measured.latency.appends_told(1)

    assert measured.told("APPEND") == (3, 6, 6, pytest.approx(2 * 1.0 + 1.1 + 3 * 0.1))


@pytest.mark.asyncio
async def test_other_requests_are_apart_by_type() -> None:
    measured = Measured()
    await measured.clock.advance(5.0)
    measured.latency.answered(RequestTimer(1, "GET_STREAM", 4.9))
    measured.latency.answered(RequestTimer(2, "SEEK", 1.0))

    assert measured.told("GET_STREAM") == (1, 1, 1, pytest.approx(0.1))
    assert measured.told("SEEK") == (0, 0, 1, pytest.approx(4.0))


@pytest.mark.asyncio
async def test_all_requests_of_a_server_are_measured_once(tmp_path: Path) -> None:
    options = server_options(tmp_path, console=Address("127.0.0.1", 0))
    async with (
        Server(options) as server,
        await Peer.connect(server.address) as peer,
        await Peer.connect(server.address) as other,
    ):
        segment_id = await peer.create_segment("raw/a")
        await peer.settled(await peer.append(segment_id, *[b"x" * 100] * 50))
        await peer.settled(await peer.append(segment_id, b"y"))
        await peer.read(segment_id, 0)
        waiting = await other.start(m.Read(segment_id=segment_id, offset=5001, size_max=10, wait_ms=60_000))
        await peer.info(segment_id)
        await peer.read(segment_id, 0)
        with pytest.raises(Exception, match="segment 99 does not exist"):
            await peer.info(99)
        await peer.store(segment_id, b"z")
        await other.reply(waiting, m.Data)
        found = await asyncio.to_thread(scrape, server.console_address)

    assert counts_by_type(found) == {"APPEND": 52, "CREATE_SEGMENT": 1, "READ": 2, "GET_SEGMENT": 2}
    assert value_of(found, "millrace_request_seconds_sum", type="APPEND") > 0


def counts_by_type(families: dict[str, Metric]) -> dict[str, float]:
    samples = families["millrace_request_seconds"].samples
    return {sample.labels["type"]: sample.value for sample in samples if sample.name.endswith("_count")}
