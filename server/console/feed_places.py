"""Limits over all feeds of a console: their number, and the memory that they use together.

Addresses share the number of feeds (`shares`). If an address has no place left, the feed that has waited longest for
its peer is cut. Its peer can resume it later, from the last place that it received.

The total memory is bounded:

    the reader of a feed         counts while it is open; at most half of the bound, see `FeedOptions.feed_window_bytes`
    a block above its window     waits for memory, in order; one feed always gets it
    a chunk being sent           counts until most of it was received

If memory runs out, feeds that wait for their peers rest, the longest wait first: they keep the chunk being sent, and
fetch their blocks again later. So does a feed whose peer keeps up, after its turn. If all feeds together send too much,
they are cut instead.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from millrace.server.shares import Shares, has_room

from .listener import UPTAKE_CHECKED_S, Uptake
from .options import FeedOptions

STALLED_S_MIN = 1.0
"""A peer that has received nothing for less than this keeps its feed when a new feed needs a place."""
SLICE_S: Final = 1.0
"""How long a feed keeps the memory for its reader: peers that receive a large block slowly take turns."""
WINDOWS_HELD: Final = 2
"""Memory of a reader in windows: fetched and requested bytes, and the events of a block that is no larger."""


@dataclass(slots=True, eq=False)
class FeedPlace:
    """One open feed.

    Attributes:
        uptake: the progress of its peer.
        end: cuts the feed.
        reader_bytes: memory for its reader, 0 while it rests.
        block_bytes: memory for a block above its window.
        sending_bytes: memory for the chunk being sent.
        since_s: when it got the memory for its reader, or for the block, by the clock of the loop.
    """

    address: str
    uptake: Uptake
    end: Callable[[], object]
    reader_bytes: int = 0
    block_bytes: int = 0
    sending_bytes: int = 0
    since_s: float = 0.0

    @property
    def held_bytes(self) -> int:
        """The sum of its memory."""
        return self.reader_bytes + self.block_bytes + self.sending_bytes


class FeedPlaces:
    """All open feeds. For the thread of the console."""

    def __init__(self, options: FeedOptions) -> None:
        self._bytes_max = options.bytes_max
        self._reader_bytes = WINDOWS_HELD * options.feed_window_bytes
        self._shares = Shares[str](options.count_max)
        self._places: dict[FeedPlace, None] = {}
        # Feeds that wait for memory, in order; and the event that wakes them when another feed releases some.
        self._waiting: deque[FeedPlace] = deque()
        self._freed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._places)

    @property
    def held_bytes(self) -> int:
        """Approximate memory of all feeds, in bytes."""
        return sum(place.held_bytes for place in self._places)

    def open(self, place: FeedPlace) -> bool:
        """Add a feed; return False if all places are taken, and cutting stalled feeds would not free one for it."""
        if not self._shares.has_room(place.address) and not self._make_room(place.address):
            return False
        self._places[place] = None
        self._shares.take(place.address)
        return True

    def hold(self, place: FeedPlace, block_bytes: int) -> bool:
        """Hold memory for the reader of a feed, and for a block; return False, and change nothing, if it does not fit.

        Only an increase for a block needs free memory. A feed that was cut always gets it.
        """
        growth = block_bytes - place.block_bytes
        if place in self._places:
            if growth > 0 and not self._has_room(place, growth):
                return False
            if growth > 0 or not place.reader_bytes:
                place.since_s, place.uptake.is_rest_wanted = asyncio.get_running_loop().time(), False
            place.reader_bytes, place.block_bytes = self._reader_bytes, block_bytes
            if growth < 0:
                self._freed.set()
        return True

    async def room(self, place: FeedPlace, block_bytes: int) -> None:
        """Hold memory for the reader of a feed, and for a block, once it is available. Cancelling is safe."""
        if self.hold(place, block_bytes):
            return
        self._waiting.append(place)
        try:
            while not self.hold(place, block_bytes):
                if self._waiting[0] is place:
                    self._let_rest(block_bytes)
                self._freed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(UPTAKE_CHECKED_S):
                        await self._freed.wait()
        finally:
            self._waiting.remove(place)
            self._freed.set()

    def is_turn_over(self, place: FeedPlace, least_s: float) -> bool:
        """Return whether a feed has held its memory for a block this long, and other feeds wait for memory."""
        held_s = asyncio.get_running_loop().time() - place.since_s
        return bool(self._waiting and place.block_bytes) and held_s >= max(SLICE_S, least_s)

    def sending(self, place: FeedPlace, size_bytes: int) -> None:
        """Hold memory for a chunk being sent; if all feeds send too much, feeds that wait for their peers are cut."""
        place.sending_bytes = size_bytes
        if not size_bytes:
            self._freed.set()
            return
        self._let_rest(0)
        for stalled in self._stalled(for_s=0.0):
            if sum(each.sending_bytes for each in self._places) <= self._bytes_max:
                break
            self._cut(stalled)

    def rest(self, place: FeedPlace) -> None:
        """Release everything but the chunk being sent."""
        place.reader_bytes = place.block_bytes = 0
        self._freed.set()

    def close(self, place: FeedPlace) -> None:
        """Remove a feed; one that was cut is removed already."""
        if place in self._places:
            del self._places[place]
            self._shares.release(place.address)
            self._freed.set()

    def _has_room(self, place: FeedPlace, growth: int) -> bool:
        """Return whether it is the turn of a feed to hold this much more for a block."""
        if self._waiting and self._waiting[0] is not place:
            return False
        is_alone = not any(each.block_bytes for each in self._places if each is not place)
        return is_alone or self.held_bytes + growth <= self._bytes_max

    def _let_rest(self, block_bytes: int) -> None:
        """Ask feeds that wait for their peers to rest, as many as a block needs, the longest wait first."""
        missing = self.held_bytes + block_bytes - self._bytes_max
        latest_s = asyncio.get_running_loop().time() - SLICE_S
        for stalled in self._stalled(for_s=0.0):
            if missing <= 0:
                return
            if stalled.reader_bytes and stalled.since_s <= latest_s:
                stalled.uptake.is_rest_wanted = True
                missing -= stalled.reader_bytes + stalled.block_bytes

    def _make_room(self, address: str) -> bool:
        """Cut as many feeds as a new feed of an address needs; none if all stalled feeds are not enough."""
        taken, held = len(self._shares), self._shares.count_of(address)
        stalled = self._stalled(for_s=STALLED_S_MIN)
        for count, place in enumerate(stalled, 1):
            taken, held = taken - 1, held - (place.address == address)
            if has_room(bound=self._shares.places_count, taken=taken, held=held):
                for each in stalled[:count]:
                    self._cut(each)
                return True
        return False

    def _stalled(self, *, for_s: float) -> list[FeedPlace]:
        """Return the feeds that have waited for their peers for this long, the longest wait first."""
        latest_s = asyncio.get_running_loop().time() - for_s
        waiting = [(since_s, place) for place in self._places if (since_s := place.uptake.stalled_since_s) is not None]
        return [place for since_s, place in sorted(waiting, key=itemgetter(0)) if since_s <= latest_s]

    def _cut(self, place: FeedPlace) -> None:
        self.close(place)
        place.end()


class FeedMemory:
    """The memory of one feed, within the limit of all feeds."""

    def __init__(self, places: FeedPlaces, place: FeedPlace) -> None:
        self._places = places
        self._place = place

    def hold(self, block_bytes: int) -> bool:
        """Hold this much for a block; see `FeedPlaces.hold`."""
        return self._places.hold(self._place, block_bytes)

    def is_turn_over(self, least_s: float) -> bool:
        """Return whether the memory for a block should pass to a waiting feed; see `FeedPlaces.is_turn_over`."""
        return self._places.is_turn_over(self._place, least_s)

    async def room(self, block_bytes: int) -> None:
        """Wait for memory, and hold it; see `FeedPlaces.room`."""
        await self._places.room(self._place, block_bytes)

    def sending(self, size_bytes: int) -> None:
        """Hold this much for the chunk being sent."""
        self._places.sending(self._place, size_bytes)

    def rest(self) -> None:
        """Release everything but the chunk being sent."""
        self._places.rest(self._place)
