"""Events on their way through a writer: as they were written, and packed into a block."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from millrace.model.block_packing import NO_HEADERS, Headers, Keys, Timestamps, checked_headers
from millrace.model.errors import MillraceError
from millrace.model.event_block import unpack_block

EVENT_COST_BYTES: Final = 64
"""What an event that waits is counted beside its value and key: its objects and its columns."""


class WriteResult(NamedTuple):
    """Where events are durable: the result of a write.

    Attributes:
        segment_id: 0 if an earlier writer of the id stored them: then only that is known.
        offset: of their block in the segment; None if it had been stored before and the server did not keep where.
        event_number: of the first event of their block; 0 if it is not known.
        event_count: events in their block; 0 if it is not known.
    """

    segment_id: int
    offset: int | None
    event_number: int
    event_count: int


NOTHING_STORED: Final = WriteResult(0, None, 0, 0)
"""The outcome of a call without events."""

BlockOutcome = WriteResult | MillraceError
"""What became of a block: where it is stored, or why it is not."""


@dataclass(slots=True, eq=False)
class Call:
    """A call of `write_many`: one future for all of its events, in one block or in one for each of several segments.

    Attributes:
        order: its place among the blocks and calls of its writer; see `Block.order`.
        missing: how many of its blocks have no outcome yet.
        outcome: of the last block that had one, or the first error.
        followers: blocks that have their outcome, and are to be resolved after it.
        is_partial: whether some of its events were stored before; their keys are in none of its blocks.
        is_divided: whether what was written after it waits for it: it is partial, or has or had several blocks.
    """

    future: "asyncio.Future[WriteResult]"
    order: int = 0
    missing: int = 0
    outcome: BlockOutcome | None = None
    followers: "list[tuple[Block, BlockOutcome]]" = field(default_factory=list)
    is_partial: bool = False
    is_divided: bool = False


class Events(NamedTuple):
    """Events in the order written: with a future each, or of one call.

    Attributes:
        keys, times: a list with one for each, or one for all.
        futures: empty for those of a call.
        cost_bytes: what the writer counts for them until they have their outcome.
        headers: by the index of the event, of those that have some.
        order: of the first block that they were in before, 0 if they were in none; see `Block.order`.
        block_count: in how many blocks they were.
        sequences: one for each, ascending; None if they have none.
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
        """Return the events with what the writer counts for them."""
        assert isinstance(self.keys, list)
        cost_bytes = sum(map(len, self.values)) + sum(len(key) for key in self.keys if key is not None)
        cost_bytes += sum(checked_headers(each)[1] for each in self.headers.values())
        return self._replace(cost_bytes=cost_bytes + EVENT_COST_BYTES * len(self.values))

    def at(self, places: Sequence[int]) -> "Events":
        """Return some of the events, in the order of `places`; what they cost is left to the caller."""
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
        futures: of its events, if they have one each.
        cost_bytes: what the writer counts for its events until they have their outcome.
        call: that all of its events belong to, if they have one future together.
        order: ascends among the blocks of a segment, and from each block to what was written later under its keys.
        sequences: of its events, ascending; None if they have none.
        error: why it will never be stored, once that is known.
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
        """The number of its last event."""
        return self.event_number + self.event_count - 1

    def resolve(self, outcome: BlockOutcome) -> None:
        """Resolve the futures of its events."""
        futures, self.futures = self.futures, []
        resolve(futures if self.call is None else [self.call.future], outcome)

    def unpack(self) -> Events:
        """Return the events, so that they can go into other blocks."""
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
    """Resolve futures, those that were not cancelled."""
    if isinstance(outcome, MillraceError):
        for future in futures:
            if not future.done():
                future.set_exception(outcome)
                # Retrieved here: flush() and leaving the writer raise the same error, so silence loses nothing,
                # and a report by asyncio for each of a million events would bury it.
                future.exception()
    elif futures:
        # Looked up here once: of an object that has a dictionary, as futures do, a method is searched for at each call.
        kind = type(futures[0])
        is_done, set_result = kind.done, kind.set_result
        for future in futures:
            if not is_done(future):
                set_result(future, outcome)


def block_of(payload: bytearray, events: Events, *, event_number: int = 0, error: MillraceError | None = None) -> Block:
    """Return the block of events that were packed, or that no append can hold."""
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
    """Return the events of one call, or of none: in the order of their sequences, or one part after another."""
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
