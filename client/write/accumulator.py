"""Gathers the events of one segment into blocks.

While a block is in flight events gather, so blocks grow with the load and no timer delays an event. A block is packed
once, with its event numbers: they are dense per segment, from 1 on, and the server stores each number once.
"""

import asyncio

from millrace.model.block_packing import EventColumns, Headers, pack_block, pack_columns
from millrace.model.compression import Compression
from millrace.model.errors import EventTooLargeError

from .events import Block, Call, Events, WriteResult, block_of, order_of


class Accumulator:
    """The events of one segment that are not in a block yet.

    `Writer.write` puts events into its lists by itself and adds what they cost to `gathered_bytes`: one call less for
    each event, 0.1 us.
    """

    __slots__ = (
        "_compression", "futures", "gathered_bytes", "headers", "keys", "last_number", "order", "scheduled",
        "sequences", "times", "values",
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
        self.futures: list[asyncio.Future[WriteResult]] = []
        # Empty if they have none.
        self.sequences: list[int] = []
        # By the index of the event: most have none.
        self.headers: dict[int, Headers] = {}
        self.gathered_bytes = 0
        # Of the block that the first of them was in before, 0 if they were in none.
        self.order = 0

    def extend(self, events: Events) -> None:
        """Gather events that have a future each."""
        if not self.values:
            self.order = events.order
        assert isinstance(events.keys, list)
        assert isinstance(events.times, list)
        self.headers |= {len(self.values) + index: each for index, each in events.headers.items()}
        self.values += events.values
        self.keys += events.keys
        self.times += events.times
        self.futures += events.futures
        self.sequences += events.sequences or ()
        self.gathered_bytes += events.cost_bytes

    def remove_all(self) -> Events:
        """Return what was gathered, and start from nothing."""
        events = Events(
            self.values,
            self.keys,
            self.times,
            self.futures,
            self.gathered_bytes,
            self.headers,
            order=order_of(self.sequences[0]) if self.sequences else self.order,
            sequences=self.sequences or None,
        )
        self.scheduled = False
        self._clear()
        return events

    def pack_gathered(self, size_bytes_max: int, *, order: int) -> list[Block]:
        """Pack what was gathered, no block if that is nothing. See `pack`.

        Args:
            order: of the blocks, if what is gathered first has none.
        """
        if not self.values:
            return []
        self.order = self.order or order
        return self.pack(self.remove_all(), size_bytes_max)

    def pack(self, events: Events, size_bytes_max: int) -> list[Block]:
        """Return the block of these events, or several where the server takes no append as large as one.

        The events of a call stay together, unless they come from several segments.

        What cannot be sent at all (the server took larger appends when it was written) is a block with an `error`.
        """
        try:
            block = self.packed(events, size_bytes_max)
        except EventTooLargeError as error:
            count = len(events.values)
            if count == 1 or (events.call is not None and events.block_count <= 1):
                return [block_of(bytearray(), events, error=error)]
            half, half_bytes = count // 2, events.cost_bytes // 2
            first = events.at(range(half))._replace(cost_bytes=half_bytes)
            second = events.at(range(half, count))._replace(cost_bytes=events.cost_bytes - half_bytes)
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
        return block_of(payload, events, event_number=event_number)

    def pack_columns(self, events: EventColumns, call: Call, size_bytes_max: int) -> Block:
        """Return the next block, of events of a call that are columns, while nothing is gathered.

        Raises:
            EventTooLargeError: they are more than an append may be.
        """
        event_number = self.last_number + 1
        payload = pack_columns(
            events, first_event_number=event_number, compression=self._compression, size_bytes_max=size_bytes_max
        )
        block = Block(payload, [], event_number, events.event_count, len(payload), call)
        self.number(block)
        return block

    def number(self, block: Block) -> None:
        """Make what `packed` returned last the next block, while nothing is gathered."""
        assert block.event_number == self.last_number + 1
        self.last_number = block.last_number
