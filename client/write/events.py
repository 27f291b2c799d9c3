"""Events in a writer: as written by the caller, and packed into blocks."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from millrace.model.block_packing import NO_HEADERS, Headers, Keys, Timestamps, checked_headers
from millrace.model.errors import MillraceError
from millrace.model.event_block import unpack_block

EVENT_COST_BYTES: Final = 64
"""Memory of the objects of a pending event, beside its value and key."""


class WriteResult(NamedTuple):
    """Result of a write: the position of the block that contains the events.

    Attributes:
        segment_id: 0 if an earlier writer with the id stored the events; then the position is unknown.
        offset: offset of the block in the segment; None if it was stored before, at an unknown offset.
        event_number: number of the first event of the block; 0 if unknown.
        event_count: events in the block; 0 if unknown.
    """

    segment_id: int
    offset: int | None
    event_number: int
    event_count: int


NOTHING_STORED: Final = WriteResult(0, None, 0, 0)
"""The result of a call without events."""

BlockOutcome = WriteResult | MillraceError
"""The outcome of a block: its position, or the error."""


@dataclass(slots=True, eq=False)
class Call:
    """A call of `write_many`: one future for all of its events, in one block or in one for each of several segments.

    Attributes:
        order: its rank among the blocks and calls of its writer; see `Block.order`.
        missing: number of its blocks without an outcome.
        outcome: outcome of its last resolved block, or the first error.
        followers: blocks with an outcome that must be resolved after this call.
        is_partial: whether some of its events were stored before, and are in none of its blocks.
        is_divided: whether later writes must be resolved after it: it is partial, or has or had several blocks.
    """

    future: "asyncio.Future[WriteResult]"
    order: int = 0
    missing: int = 0
    outcome: BlockOutcome | None = None
    followers: "list[tuple[Block, BlockOutcome]]" = field(default_factory=list)
    is_partial: bool = False
    is_divided: bool = False


class Events(NamedTuple):
    """Events in the order written: with one future each, or all of one call.

    Attributes:
        keys, times: a list with one entry per event, or one value for all.
        futures: empty for events of a call.
        cost_bytes: bytes that they occupy in the buffer of the writer until they have an outcome.
        headers: headers by index of the event.
        order: order of the first block that contained them, 0 if none did; see `Block.order`.
        block_count: number of blocks that contained them.
        sequences: one per event, ascending; None for events without sequences.
    """

    values: list[bytes]
    keys: Keys
    times: Timestamps
    futures: "list[asyncio.Future[WriteResult]]"
    cost_bytes: int
    headers: Mapping[int, Headers] = NO_HEADERS
    call: Call | None = None
    order: int = 0
    block_count: int = 0
    sequences: Sequence[int] | None = None

    def counted(self) -> "Events":
        """Return the events with `cost_bytes` computed."""
        assert isinstance(self.keys, list)
        cost_bytes = sum(map(len, self.values)) + sum(len(key) for key in self.keys if key is not None)
        cost_bytes += sum(checked_headers(each)[1] for each in self.headers.values())
        return self._replace(cost_bytes=cost_bytes + EVENT_COST_BYTES * len(self.values))

    def at(self, places: Sequence[int]) -> "Events":
        """Return the events at some indexes, in that order; the caller sets `cost_bytes`."""
        values, keys, times, futures, sequences = self.values, self.keys, self.times, self.futures, self.sequences
        headers = self.headers and {new: self.headers[i] for new, i in enumerate(places) if i in self.headers}
        if isinstance(keys, list):
            keys = [keys[i] for i in places]
        if times is not None and not isinstance(times, int):
            times = [times[i] for i in places]
        return self._replace(
            values=[values[i] for i in places],
            keys=keys,
            times=times,
            futures=[futures[i] for i in places] if futures else futures,
            cost_bytes=0,
            headers=headers,
            sequences=None if sequences is None else [sequences[i] for i in places],
        )


@dataclass(slots=True, eq=False)
class Block:
    """A packed block and the futures that its outcome resolves.

    Attributes:
        futures: one per event, unless they belong to a call.
        cost_bytes: bytes that its events occupy in the buffer of the writer until they have an outcome.
        call: the call of all its events, if they share one future.
        order: ascends among the blocks of a segment, and along the writes of each key.
        sequences: of its events, ascending; None for events without sequences.
        error: the reason why it can never be stored, if known.
    """

    payload: bytearray
    futures: "list[asyncio.Future[WriteResult]]"
    event_number: int
    event_count: int
    cost_bytes: int
    call: Call | None = None
    order: int = 0
    sequences: Sequence[int] | None = None
    error: MillraceError | None = None

    @property
    def last_number(self) -> int:
        """Number of its last event."""
        return self.event_number + self.event_count - 1

    def resolve(self, outcome: BlockOutcome) -> None:
        """Resolve the futures of its events."""
        futures, self.futures = self.futures, []
        resolve(futures if self.call is None else [self.call.future], outcome)

    def unpack(self) -> Events:
        """Return the events, to pack them into other blocks."""
        events = unpack_block(self.payload)
        assert events.timestamps is not None
        return Events(
            events.values(),
            events.keys(),
            events.timestamps.tolist(),
            self.futures,
            self.cost_bytes,
            {index: each for index, each in enumerate(events.headers()) if each is not None},
            self.call,
            self.order,
            1,
            self.sequences,
        )


def order_of(sequence: int) -> int:
    """Return the `Block.order` of a block whose first event has this sequence."""
    return sequence + 1


def resolve(futures: "Sequence[asyncio.Future[WriteResult]]", outcome: BlockOutcome) -> None:
    """Resolve all futures that were not cancelled."""
    if isinstance(outcome, MillraceError):
        for future in futures:
            if not future.done():
                future.set_exception(outcome)
                # Mark it as retrieved: flush() and leaving the writer raise the same error, and a report by asyncio for
                # each of a million events would bury it.
                future.exception()
    elif futures:
        # Methods are looked up once: futures have a dictionary, so each call would search it.
        kind = type(futures[0])
        is_done, set_result = kind.done, kind.set_result
        for future in futures:
            if not is_done(future):
                set_result(future, outcome)


def block_of(payload: bytearray, events: Events, *, event_number: int = 0, error: MillraceError | None = None) -> Block:
    """Return the block of packed events, or of events that are too large for an append."""
    return Block(
        payload,
        events.futures,
        event_number,
        len(events.values),
        events.cost_bytes,
        events.call,
        events.order,
        events.sequences,
        error,
    )


def joined(parts: Sequence[Events]) -> Events:
    """Concatenate events of one call, or of none; events with sequences are sorted by them."""
    first = parts[0]
    if len(parts) == 1:
        return first
    values: list[bytes] = []
    keys: list[str | None] = []
    times: list[int] = []
    futures: list[asyncio.Future[WriteResult]] = []
    sequences: list[int] = []
    headers: dict[int, Headers] = {}
    for part in parts:
        assert isinstance(part.keys, list)
        assert isinstance(part.times, list)
        headers |= {len(values) + index: each for index, each in part.headers.items()}
        values += part.values
        keys += part.keys
        times += part.times
        futures += part.futures
        sequences += part.sequences or ()
    cost_bytes = sum(part.cost_bytes for part in parts)
    whole = Events(
        values, keys, times, futures, cost_bytes, headers, first.call, first.order, len(parts), sequences or None
    )
    if not sequences:
        return whole
    return whole.at(sorted(range(len(values)), key=sequences.__getitem__))._replace(cost_bytes=cost_bytes)
