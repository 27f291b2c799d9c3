"""Requests have a fate of their own."""

import asyncio
from collections.abc import Iterator
from random import Random

import pytest

from millrace.server.errors import StoreUnavailableError

from .network import LATE_S_MAX, Bucket, SimulatedStore, Weather
from .virtual_loop import Life, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


def store_of(bucket: Bucket, loop: VirtualLoop, weather: Weather) -> SimulatedStore:
    return SimulatedStore(bucket, loop, weather=weather, dice=Random(1))


@pytest.mark.parametrize(
    ("weather", "is_stored"),
    [
        (Weather(lost=1.0), False),
        (Weather(busy=1.0), False),
        (Weather(unanswered=1.0), True),
        (Weather(reset=1.0), True),
        (Weather(late=1.0), False),
    ],
)
def test_a_put_that_fails_may_have_happened(loop: VirtualLoop, weather: Weather, is_stored: bool) -> None:
    bucket = Bucket()

    async def life() -> None:
        with pytest.raises(StoreUnavailableError):
            await store_of(bucket, loop, weather).create("key", [b"content"])
        assert ("key" in bucket.objects) == is_stored
        await asyncio.sleep(2 * LATE_S_MAX)
        assert ("key" in bucket.objects) == (is_stored or weather.late == 1.0)

    loop.run_until_complete(life())


def test_a_put_lands_although_its_caller_has_crashed(loop: VirtualLoop) -> None:
    bucket = Bucket()

    async def life() -> None:
        process = Life()
        putting = loop.start(process, store_of(bucket, loop, Weather()).create("key", [b"content"]))
        await asyncio.sleep(0)
        process.is_frozen = True
        await asyncio.sleep(1.0)
        assert bucket.objects == {"key": b"content"}
        assert not putting.done()
        loop.thaw(process, timers_first=False)
        await putting

    loop.run_until_complete(life())
