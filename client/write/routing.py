"""Routes events to segments.

A routing key has one place in the key space forever, and at any time each place belongs to one open segment of the
stream. Events without a key have no order to keep: they go where the writer's last block did not, or, if they have
sequences, to the place of their sequence.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from millrace.client.errors import StreamSealedError
from millrace.model.errors import EventTooLargeError, InvalidArgumentError
from millrace.model.key_range import KeyRange, covers_once
from millrace.model.limits import ROUTING_KEY_SIZE_BYTES_MAX
from millrace.model.sequence_row import SEQUENCES_PER_PLACE, sequence_place
from millrace.wire import messages as m


def encoded_key(key: str | None) -> bytes:
    """Return the bytes of a routing key.

    Raises:
        TypeError: not text.
        InvalidArgumentError: text that UTF-8 cannot hold (lone surrogates).
        EventTooLargeError: more than 64 KiB.
    """
    if not isinstance(key, str):
        raise TypeError(f"a routing key is text, not {type(key).__name__}")
    try:
        data = key.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"a routing key must fit UTF-8: {error}") from None
    if len(data) > ROUTING_KEY_SIZE_BYTES_MAX:
        raise EventTooLargeError(
            f"a routing key holds at most {ROUTING_KEY_SIZE_BYTES_MAX} bytes in UTF-8, not {len(data)}"
        )
    return data


class Router:
    """The open segments of a stream by their key ranges; numbers them from 0 in that order."""

    def __init__(self, segment_ids: Sequence[int], lows: Sequence[int]) -> None:
        self.segment_ids = tuple(segment_ids)
        self._lows = list(lows)
        self._lows_array = np.array(self._lows, dtype=np.uint64)
        # The last sequences that were asked for, as a multiple of those that share a place, and their segment.
        self._chunk = -1
        self._number_of_chunk = -1

    @classmethod
    def of_stream(cls, name: str, segments: Iterable[m.StreamSegment]) -> "Router":
        """Return the router of a stream's open segments.

        Raises:
            StreamSealedError: none is open.
            InvalidArgumentError: they do not cover the key space exactly once.
        """
        live = sorted((segment for segment in segments if not segment.sealed), key=lambda segment: segment.low)
        if not live:
            raise StreamSealedError(f"{name}: no segment of the stream is open")
        if not covers_once(KeyRange.inclusive(segment.low, segment.last) for segment in live):
            raise InvalidArgumentError(f"{name}: its segments do not cover the key space exactly once")
        return cls([segment.segment_id for segment in live], [segment.low for segment in live])

    def __len__(self) -> int:
        return len(self.segment_ids)

    def number_at(self, place: int) -> int:
        """Return the number of the segment that a place of the key space belongs to."""
        return bisect_right(self._lows, place) - 1

    def numbers_at(self, places: "npt.NDArray[np.uint64]") -> "npt.NDArray[np.intp]":
        """Return the number of the segment of each place."""
        return np.searchsorted(self._lows_array, places, side="right") - 1

    def number_of(self, key: str) -> int:
        """Return the number of the segment that a key belongs to. Raises like `encoded_key`."""
        return bisect_right(self._lows, xxh3_64_intdigest(encoded_key(key))) - 1

    def number_of_sequence(self, sequence: int) -> int:
        """Return the number of the segment that an event without a key belongs to."""
        chunk = sequence // SEQUENCES_PER_PLACE
        if chunk != self._chunk:
            self._number_of_chunk = self.number_at(place_of(None, sequence=sequence))
            self._chunk = chunk
        return self._number_of_chunk

    def numbers_of(self, keys: Sequence[str]) -> npt.NDArray[np.intp]:
        """Return the number of the segment of each key. Raises like `encoded_key`."""
        return self.numbers_at(places_of(keys))


def place_of(key: str | None, *, sequence: int) -> int:
    """Return the place in the key space of an event that has a sequence. Raises like `encoded_key`."""
    return sequence_place(sequence) if key is None else xxh3_64_intdigest(encoded_key(key))


def places_of(keys: Sequence[str | None]) -> "npt.NDArray[np.uint64]":
    """Return the place of each key. Raises like `encoded_key`."""
    return np.fromiter(map(xxh3_64_intdigest, map(encoded_key, keys)), dtype=np.uint64, count=len(keys))
