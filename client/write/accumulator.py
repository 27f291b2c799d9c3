"""Gathers the events of one segment into blocks.

While a block is in flight events gather, so blocks grow with the load and no timer delays an event. A block is packed
once, with its event numbers: they are dense per segment, from 1 on, and the server stores each number once.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from millrace.model.block_packing import NO_HEADERS, Headers, Keys, Timestamps, checked_headers, pack_block
from millrace.model.compression import Compression
from millrace.model.errors import EventTooLargeError, MillraceError
from millrace.model.event_block import unpack_block

EVENT_COST_BYTES: Final = 64
"""What an event that waits is counted beside its value and key: its objects and its columns."""


class Stored(NamedTuple):
    """Where events are durable: the result of a write.

    Attributes:
        offset: of their block in the segment; None if it had been stored before and the server did not keep where.
        event_number: of the first event of their block.
        event_count: events in their block.
    """

    segment_id: int
    offset: int | None
    event_number: int
    event_count: int


class Events(NamedTuple):
    """Events in the order written: with a future each, or with one for all if they were written as one block.

    Attributes:
        keys, times: a list with one for each, or one for all.
        cost_bytes: what the writer counts for them until they have their outcome.
        headers: by the index of the event, of those that have some.
    """

    values: list[bytes]
    keys: Keys
    times: Timestamps
    futures: "list[asyncio.Future[Stored]]"
    cost_bytes: int
    headers: Mapping[int, Headers] = NO_HEADERS

    @property
    def is_block(self) -> bool:
        """Whether the events stay together."""
        return len(self.futures) < len(self.values)

    def counted(self) -> "Events":
        """Return the events with what the writer counts for them."""
        assert isinstance(self.keys, list)
        cost_bytes = sum(map(len, self.values)) + sum(len(key) for key in self.keys if key is not None)
        cost_bytes += sum(checked_headers(each)[1] for each in self.headers.values())
        return self._replace(cost_bytes=cost_bytes + EVENT_COST_BYTES * len(self.values))

    def at(self, places: Sequence[int], futures: "list[asyncio.Future[Stored]]", cost_bytes: int) -> "Events":
        """Return some of the events, in the order of `places`."""
        values, keys, times = self.values, self.keys, self.times
        headers = self.headers and {new: self.headers[i] for new, i in enumerate(places) if i in self.headers}
        if isinstance(keys, list):
            keys = [keys[i] for i in places]
        if isinstance(times, list):
            times = [times[i] for i in places]
        return Events([values[i] for i in places], keys, times, futures, cost_bytes, headers)


@dataclass(slots=True, eq=False)
class Block:
    """A packed block and the futures that its outcome resolves.

    Attributes:
        cost_bytes: what the writer counts for its events until they have their outcome.
        error: why it will never be stored, once that is known.
    """

    payload: bytearray
    futures: "list[asyncio.Future[Stored]]"
    event_number: int
    event_count: int
    cost_bytes: int
    error: MillraceError | None = None

    @property
    def last_number(self) -> int:
        """The number of its last event."""
        return self.event_number + self.event_count - 1

    def resolve(self, outcome: Stored | MillraceError) -> None:
        """Resolve the futures, those that were not cancelled."""
        futures, self.futures = self.futures, []
        if isinstance(outcome, MillraceError):
            for future in futures:
                if not future.done():
                    future.set_exception(outcome)
                    # Retrieved here: flush() and leaving the writer raise the same error, so silence loses nothing,
                    # and a report by asyncio for each of a million events would bury it.
                    future.exception()
        else:
            for future in futures:
                if not future.done():
                    future.set_result(outcome)

    def unpack(self) -> Events:
        """Return the events, so that they can go into other blocks."""
        events = unpack_block(self.payload)
        assert events.timestamps is not None
        headers = {index: each for index, each in enumerate(events.headers()) if each is not None}
        return Events(
            events.values(), events.keys(), events.timestamps.tolist(), self.futures, self.cost_bytes, headers
        )


class Accumulator:
    """The events of one segment that are not in a block yet.

    `Writer.write` puts events into `values`, `keys`, `times` and `futures` by itself and adds what they cost to
    `gathered_bytes`: one call less for each event, 0.1 us.
    """

    __slots__ = (
        "_compression", "futures", "gathered_bytes", "headers", "keys", "last_number", "scheduled", "times", "values",
    )  # fmt: skip

    def __init__(self, *, last_event_number: int, compression: Compression) -> None:
        self._compression = compression
        # Of the last event in a packed block.
        self.last_number = last_event_number
        # Whether it is certain that what is gathered will be packed without another call.
        self.scheduled = False
        self._clear()

    def _clear(self) -> None:
        self.values: list[bytes] = []
        self.keys: list[str | None] = []
        self.times: list[int] = []
        self.futures: list[asyncio.Future[Stored]] = []
        # By the index of the event: most have none.
        self.headers: dict[int, Headers] = {}
        self.gathered_bytes = 0

    def extend(self, events: Events) -> None:
        """Gather events that have a future each."""
        assert isinstance(events.keys, list)
        assert isinstance(events.times, list)
        self.headers |= {len(self.values) + index: each for index, each in events.headers.items()}
        self.values += events.values
        self.keys += events.keys
        self.times += events.times
        self.futures += events.futures
        self.gathered_bytes += events.cost_bytes

    def remove_all(self) -> Events:
        """Return what was gathered, and start from nothing."""
        events = Events(self.values, self.keys, self.times, self.futures, self.gathered_bytes, self.headers)
        self.scheduled = False
        self._clear()
        return events

    def pack_gathered(self, size_bytes_max: int) -> list[Block]:
        """Pack what was gathered: no block if that is nothing. See `pack`."""
        return self.pack(self.remove_all(), size_bytes_max) if self.values else []

    def pack(self, events: Events, size_bytes_max: int) -> list[Block]:
        """Return the block of these events, or several where the server takes no append as large as one.

        What cannot be sent at all (the server took larger appends when it was written) is a block with an `error`.
        """
        try:
            block = self.packed(events, size_bytes_max)
        except EventTooLargeError as error:
            count = len(events.values)
            if count == 1 or events.is_block:
                return [refused_block(events, error)]
            half, half_bytes = count // 2, events.cost_bytes // 2
            first = events.at(range(half), events.futures[:half], half_bytes)
            second = events.at(range(half, count), events.futures[half:], events.cost_bytes - half_bytes)
            return self.pack(first, size_bytes_max) + self.pack(second, size_bytes_max)
        self.number(block)
        return [block]

    def packed(self, events: Events, size_bytes_max: int) -> Block:
        """Return the block of these events as it follows what was gathered; `number` makes it the next one.

        Raises:
            EventTooLargeError, InvalidArgumentError, TypeError: see `pack_block`.
        """
        keys = events.keys
        if isinstance(keys, list) and keys.count(None) == len(keys):
            keys = None
        event_number = self.last_number + len(self.values) + 1
        payload = pack_block(
            events.values,
            keys=keys,
            timestamps_us=events.times,
            headers=events.headers,
            first_event_number=event_number,
            compression=self._compression,
            size_bytes_max=size_bytes_max,
        )
        return Block(payload, events.futures, event_number, len(events.values), events.cost_bytes)

    def number(self, block: Block) -> None:
        """Make what `packed` returned last the next block, while nothing is gathered."""
        assert block.event_number == self.last_number + 1
        self.last_number = block.last_number


def refused_block(events: Events, error: MillraceError) -> Block:
    """Return a block that will never be sent, for its futures."""
    return Block(bytearray(), events.futures, 0, len(events.values), events.cost_bytes, error)


class Join:
    """Resolves one future when those of several blocks are done: with the last result, or with the first error."""

    __slots__ = ("_missing", "_result")

    def __init__(self, result: "asyncio.Future[Stored]", count: int) -> None:
        self._result = result
        self._missing = count

    def part(self) -> "asyncio.Future[Stored]":
        """Return the future of one block; called `count` times."""
        future: asyncio.Future[Stored] = self._result.get_loop().create_future()
        future.add_done_callback(self._done)
        return future

    def _done(self, future: "asyncio.Future[Stored]") -> None:
        self._missing -= 1
        if self._result.done():
            return
        error = future.exception()
        if error is not None:
            self._result.set_exception(error)
            self._result.exception()  # retrieved: flush raises it too
        elif self._missing == 0:
            self._result.set_result(future.result())
