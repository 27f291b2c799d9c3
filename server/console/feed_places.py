"""The bounds of all feeds of a console: how many are open, and how much memory they hold together.

Addresses share the number of feeds (`shares`). If an address has no room, or all feeds hold too much memory, a feed
whose peer takes nothing makes room: the one that has waited for its peer longest. Its peer can resume it later, by the
place that it received last.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter

from millrace.server.shares import Shares, has_room

from .listener import Uptake
from .options import FeedOptions

STALLED_S_MIN = 1.0
"""A peer that has taken nothing for less than this keeps its feed from a newcomer."""


@dataclass(slots=True, eq=False)
class FeedPlace:
    """One open feed.

    Attributes:
        uptake: what its peer takes.
        end: cuts the feed.
        held_bytes: memory for its reader, and for the events that are being sent.
    """

    address: str
    uptake: Uptake
    end: Callable[[], object]
    held_bytes: int = 0


class FeedPlaces:
    """All open feeds. For the thread of the console."""

    def __init__(self, options: FeedOptions) -> None:
        self._bytes_max = options.bytes_max
        self._shares = Shares[str](options.count_max)
        self._places: dict[FeedPlace, None] = {}
        self._held_bytes = 0

    def __len__(self) -> int:
        return len(self._places)

    @property
    def held_bytes(self) -> int:
        """Approximate memory of all feeds, in bytes."""
        return self._held_bytes

    def open(self, place: FeedPlace) -> bool:
        """Add a feed; return False if all places are taken, and cutting stalled feeds would not free one for it."""
        if not self._shares.has_room(place.address) and not self._make_room(place.address):
            return False
        self._places[place] = None
        self._shares.take(place.address)
        return True

    def hold(self, place: FeedPlace, held_bytes: int) -> None:
        """Count the memory that a feed holds from now on; other feeds make room if it is too much with theirs."""
        if place not in self._places:
            return
        self._held_bytes += held_bytes - place.held_bytes
        place.held_bytes = held_bytes
        for stalled in self._stalled(for_s=0.0):
            if self._held_bytes <= self._bytes_max:
                break
            self._cut(stalled)

    def close(self, place: FeedPlace) -> None:
        """Remove a feed; one that was cut is removed already."""
        if place in self._places:
            del self._places[place]
            self._shares.release(place.address)
            self._held_bytes -= place.held_bytes

    def _make_room(self, address: str) -> bool:
        """Cut as many feeds as a new feed of an address needs; none, if all that have stalled are too few."""
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
        """Return the feeds that have waited for their peers for so long, the longest wait first."""
        latest_s = asyncio.get_running_loop().time() - for_s
        waiting = [(since_s, place) for place in self._places if (since_s := place.uptake.stalled_since_s) is not None]
        return [place for since_s, place in sorted(waiting, key=itemgetter(0)) if since_s <= latest_s]

    def _cut(self, place: FeedPlace) -> None:
        self.close(place)
        place.end()
