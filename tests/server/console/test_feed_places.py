"""Behaviour 104: feeds that nobody takes make room for others."""

import asyncio

import pytest

from millrace.server.console.feed_places import SLICE_S, STALLED_S_MIN, FeedPlace, FeedPlaces
from millrace.server.console.listener import Uptake
from millrace.server.console.options import WINDOW_BYTES_MIN, FeedOptions
from millrace.wire.limits import MIB
from tests.support.waiting import until


class Feeds:
    """Places, and which feeds were cut."""

    def __init__(self, options: FeedOptions) -> None:
        self.places = FeedPlaces(options)
        self.cut: list[str] = []

    def open(self, name: str, *, address: str = "10.0.0.1", stalled_s: float | None = None) -> FeedPlace | None:
        now_s = asyncio.get_running_loop().time()
        place = FeedPlace(
            address, Uptake(None if stalled_s is None else now_s - stalled_s), lambda: self.cut.append(name)
        )
        return place if self.places.open(place) else None


@pytest.mark.asyncio
async def test_addresses_share_the_places() -> None:
    feeds = Feeds(FeedOptions(count_max=3))
    assert [feeds.open(name) is not None for name in "abc"] == [True, True, False]
    assert feeds.open("d", address="10.0.0.2") is not None
    assert feeds.cut == []


@pytest.mark.asyncio
async def test_the_feed_that_took_nothing_longest_makes_room() -> None:
    feeds = Feeds(FeedOptions(count_max=3))
    short, long = feeds.open("short", stalled_s=2 * STALLED_S_MIN), feeds.open("long", stalled_s=50.0)
    assert (short is None, long is None) == (False, False)
    assert feeds.open("new", stalled_s=0.0) is not None
    assert feeds.cut == ["long"]
    assert feeds.open("next") is not None
    assert feeds.cut == ["long", "short"]
    assert feeds.open("last") is None, "the others have not stalled for long enough"
    assert len(feeds.places) == 2


@pytest.mark.asyncio
async def test_no_feed_is_cut_for_an_address_that_gets_no_place_by_that() -> None:
    """Behaviour 104: an address that asks for more than its share ends the feeds of nobody."""
    feeds = Feeds(FeedOptions(count_max=4))
    assert [feeds.open(name) is not None for name in "ab"] == [True, True]
    assert feeds.open("slow", address="10.0.0.2", stalled_s=2 * STALLED_S_MIN) is not None
    assert feeds.open("more") is None
    assert feeds.cut == []


@pytest.mark.asyncio
async def test_what_all_feeds_send_is_bounded() -> None:
    feeds = Feeds(FeedOptions(bytes_max=10 * MIB))
    places = [feeds.open(str(number), stalled_s=10.0 - number) for number in range(4)]
    quick = feeds.open("quick")
    for place in (*places, quick):
        assert place is not None
        feeds.places.sending(place, 3 * MIB)
    # The first one makes room for the fourth, and the second one for the fifth.
    assert feeds.cut == ["0", "1"]
    assert feeds.places.held_bytes == 9 * MIB
    assert quick is not None
    feeds.places.sending(quick, 100 * MIB)
    assert feeds.cut == ["0", "1", "2", "3"], "a feed that sends is not cut for its own event"
    feeds.places.close(quick)
    feeds.places.close(quick)
    assert (feeds.places.held_bytes, len(feeds.places)) == (0, 0)


@pytest.mark.asyncio
async def test_a_block_waits_for_room_and_the_longest_stalled_feed_rests_for_it() -> None:
    """Behaviour 104: nobody is cut for a block, which can be fetched again."""
    options = FeedOptions(bytes_max=10 * MIB, window_bytes=WINDOW_BYTES_MIN)
    feeds = Feeds(options)
    short, long, new = feeds.open("short", stalled_s=5.0), feeds.open("long", stalled_s=9.0), feeds.open("new")
    assert short is not None
    assert long is not None
    assert new is not None
    for place in (short, long):
        assert feeds.places.hold(place, 4 * MIB)
        place.since_s -= 2 * SLICE_S
    assert not feeds.places.hold(new, 4 * MIB)
    waiting = asyncio.create_task(feeds.places.room(new, 4 * MIB))
    await until(lambda: long.uptake.is_rest_wanted)
    assert not short.uptake.is_rest_wanted
    assert not waiting.done()
    feeds.places.rest(long)
    await waiting
    assert (new.block_bytes, feeds.cut) == (4 * MIB, [])
    assert feeds.places.held_bytes <= options.bytes_max


@pytest.mark.asyncio
async def test_blocks_get_room_in_the_order_of_their_waits_and_one_always_does() -> None:
    feeds = Feeds(FeedOptions(bytes_max=10 * MIB, window_bytes=WINDOW_BYTES_MIN))
    *places, late = [place for name in "abcde" if (place := feeds.open(name)) is not None]
    assert feeds.places.hold(places[0], 50 * MIB), "a block that is larger than all memory goes alone"
    waits = [asyncio.create_task(feeds.places.room(place, 8 * MIB)) for place in places[1:]]
    await asyncio.sleep(0)
    for number, wait in enumerate(waits):
        assert not feeds.places.hold(late, 1), "nobody overtakes"
        feeds.places.rest(places[number])
        await wait
        assert [each.done() for each in waits] == [each <= number for each in range(len(waits))]


@pytest.mark.asyncio
async def test_a_feed_that_waits_for_room_can_leave() -> None:
    feeds = Feeds(FeedOptions(bytes_max=10 * MIB, window_bytes=WINDOW_BYTES_MIN))
    places = [place for name in "abc" if (place := feeds.open(name)) is not None]
    assert feeds.places.hold(places[0], 50 * MIB)
    waits = [asyncio.create_task(feeds.places.room(place, 8 * MIB)) for place in places[1:]]
    await asyncio.sleep(0)
    waits[0].cancel()
    await asyncio.wait(waits[:1])
    feeds.places.rest(places[0])
    await waits[1]
    assert places[1].held_bytes == 0
