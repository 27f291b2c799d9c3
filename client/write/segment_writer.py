"""The road of one writer to one segment: events gather, become blocks, are sent in order and sent again.

While a block is on its way events gather, so blocks grow with the load and nothing waits for a timer. A block is packed
once, with its event numbers; whatever happens to connections, the same block is sent again until the server has
answered for it, and the server stores each number once.

    gathered   values, keys, timestamps, futures: the next block
    queued     blocks that were packed and must (still, or again) be sent
    sent       blocks whose answer is awaited, in the order sent

After an error that passes (a lost connection, a full disk) the lane waits until every block that was sent has been
answered for, puts them back in front of the queue, and asks the writer for another attempt.

A segment that was sealed stores nothing more of the lane: what it had stored is acked, also when it is sent again, and
from the first block on that it refuses nothing is stored. So once every block has been answered for, the lane is
*stalled*, and what it holds is exactly what the successors of the segment must get. The writer takes it out again.
"""

import asyncio
from collections import deque
from typing import NamedTuple, Protocol

from millrace.client.blocks import Keys, Timestamps, pack_block, unpack_block
from millrace.client.compression import Compression
from millrace.client.errors import (
    ConnectionLostError,
    EventNumberError,
    OutcomeUnknownError,
    PipelineBrokenError,
    SegmentNotFoundError,
    SegmentSealedError,
    WriterExpiredError,
)
from millrace.client.transport.connection import Connection
from millrace.model.errors import EventTooLargeError, MillraceError
from millrace.wire.limits import APPEND_HEADER_SIZE_BYTES


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


class Owner(Protocol):
    """The writer as its lanes see it."""

    number: int
    epoch: int
    append_size_max: int

    def connection_with_room(self, lane: "Lane", size: int) -> Connection | None:
        """Return the connection if a block of that size may be sent now; else the lane is pumped when it may."""

    def block_sent(self, size: int) -> None:
        """Count a block as on its way."""

    def block_answered(self, size: int) -> None:
        """Count a block as no longer on its way."""

    def block_settled(self, cost_bytes: int) -> None:
        """Give back the memory of a block that was stored or failed for good."""

    def retry_wanted(self, error: MillraceError) -> None:
        """Let lanes that stand still be resumed, after a wait."""

    def lane_stalled(self, lane: "Lane") -> None:
        """Find a way for a lane whose segment takes no more appends."""

    def fail(self, error: MillraceError) -> None:
        """End the writer: nothing more can be stored in order."""


class Unstored(NamedTuple):
    """Events that a stalled lane holds, in the order written: singles with a future each, or a block with one.

    Attributes:
        settled: resolved when those who flush should look again; None where nobody does.
    """

    values: list[bytes]
    keys: list[str | None]
    times: list[int]
    futures: "list[asyncio.Future[Stored]]"
    cost_bytes: int
    settled: "asyncio.Future[None] | None"

    @property
    def is_block(self) -> bool:
        """Whether the events were written as one and stay together."""
        return len(self.futures) < len(self.values)


class Block:
    """A packed block and who waits for it."""

    __slots__ = (
        "cost_bytes", "doubtful", "event_count", "event_number", "futures", "lane", "payload", "settled", "size",
    )  # fmt: skip

    def __init__(
        self,
        lane: "Lane",
        payload: bytearray,
        *,
        event_number: int,
        event_count: int,
        futures: "list[asyncio.Future[Stored]]",
        cost_bytes: int,
    ) -> None:
        self.lane = lane
        self.payload = payload
        self.size = len(payload)
        self.event_number = event_number
        self.event_count = event_count
        self.futures = futures
        # What the writer counts for its events until they are settled.
        self.cost_bytes = cost_bytes
        # Made for those who flush.
        self.settled: asyncio.Future[None] | None = None
        # Sent, and nothing is known of what became of it.
        self.doubtful = False

    def acked(self, offset: int | None, *, duplicate: bool) -> None:
        """Resolve the futures; called by the connection."""
        del duplicate  # for the caller a block stored by an earlier attempt is stored
        self.lane.block_acked(self, offset)

    def failed(self, error: MillraceError) -> None:
        """Keep the block for another attempt, or give up; called by the connection."""
        self.lane.block_failed(self, error)

    def settle(self, result: Stored | MillraceError) -> None:
        """Tell everyone who waits. What was sent before the writer expired, nobody can tell any more."""
        if isinstance(result, WriterExpiredError) and self.doubtful:
            unknown = OutcomeUnknownError(f"sent, and not known to be stored when the writer expired: {result}")
            unknown.__cause__ = result
            result = unknown
        futures, self.futures = self.futures, []
        if isinstance(result, MillraceError):
            for future in futures:
                if not future.done():
                    future.set_exception(result)
                    # Retrieved here: flush() and leaving the writer raise the same error, so silence loses nothing,
                    # and a report by asyncio for each of a million events would bury it.
                    future.exception()
        else:
            for future in futures:
                if not future.done():
                    future.set_result(result)
        if self.settled is not None and not self.settled.done():
            self.settled.set_result(None)


class Lane:
    """One writer's road to one segment.

    `Writer.write` puts events into `values`, `keys`, `times` and `futures` by itself, adds what they cost to
    `gathered_bytes`, and calls `schedule` unless `scheduled` is set: a call less for each event.
    """

    __slots__ = (
        "_compression", "_loop", "_owner", "_queue", "_refusal", "_retry", "_sent", "_unanswered", "futures",
        "gathered_bytes", "keys", "last_acked_number", "last_number", "scheduled", "segment_id", "times", "values",
    )  # fmt: skip

    def __init__(self, owner: Owner, *, segment_id: int, last_event_number: int, compression: Compression) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._compression = compression
        self.segment_id = segment_id
        # Of the last event in a packed block, and in an acked one.
        self.last_number = last_event_number
        self.last_acked_number = last_event_number
        self.values: list[bytes] = []
        self.keys: list[str | None] = []
        self.times: list[int] = []
        self.futures: list[asyncio.Future[Stored]] = []
        self.gathered_bytes = 0
        self.scheduled = False
        self._queue: deque[Block] = deque()
        self._sent: deque[Block] = deque()
        # Blocks in `_sent` whose answer has not come; those answered with an error stay there until all are.
        self._unanswered = 0
        # The error that passes, while the lane stands still because of it.
        self._retry: MillraceError | None = None
        # Why the segment takes no more appends, while the lane stands still because of it.
        self._refusal: MillraceError | None = None

    # --- events in ---

    def schedule(self) -> None:
        """Let what was gathered leave in the next turn of the loop, if no block is on its way; else behind that one."""
        self.scheduled = True
        if not self._sent:
            self._loop.call_soon(self._turn)

    def seal(self) -> bool:
        """Make a block of what was gathered; return whether there was something. `pump` sends it."""
        self.scheduled = False
        values = self.values
        if not values:
            return False
        keys: list[str | None] | None = self.keys
        if keys is not None and keys.count(None) == len(keys):
            keys = None
        times, futures, cost_bytes = self.times, self.futures, self.gathered_bytes
        self.values, self.keys, self.times, self.futures, self.gathered_bytes = [], [], [], [], 0
        self._pack(values, keys, times, futures=futures, cost_bytes=cost_bytes)
        return True

    def prepare(self, values: list[bytes], keys: Keys, timestamps_us: Timestamps) -> bytearray:
        """Return the block of these events as it goes behind what was gathered; nothing is taken yet.

        Raises:
            EventTooLargeError, InvalidArgumentError, TypeError: see `pack_block`.
        """
        return self._packed(values, keys, timestamps_us, behind=len(self.values))

    def add_block(self, payload: bytearray, count: int, future: "asyncio.Future[Stored]") -> int:
        """Take what `prepare` returned just before; return what it costs. `pump` sends it."""
        self.seal()
        self._block(payload, count, futures=[future], cost_bytes=len(payload))
        return len(payload)

    def pump(self) -> None:
        """Send what is queued, as far as there is room."""
        queue = self._queue
        owner = self._owner
        while queue and self._retry is None and self._refusal is None:
            block = queue[0]
            size = block.size + APPEND_HEADER_SIZE_BYTES
            connection = owner.connection_with_room(self, size)
            if connection is None:
                return
            queue.popleft()
            self._sent.append(block)
            self._unanswered += 1
            owner.block_sent(size)
            try:
                connection.send_append(
                    block,
                    block.payload,
                    segment_id=self.segment_id,
                    event_count=block.event_count,
                    writer_number=owner.number,
                    writer_epoch=owner.epoch,
                    event_number=block.event_number,
                )
            except MillraceError as error:
                self.block_failed(block, error)

    def last_block(self) -> Block | None:
        """Return the last block that is not settled."""
        if self._queue:
            return self._queue[-1]
        return self._sent[-1] if self._sent else None

    # --- answers ---

    def block_acked(self, block: Block, offset: int | None) -> None:
        """Settle a block, and send what gathered meanwhile."""
        self._unanswered -= 1
        self._owner.block_answered(block.size + APPEND_HEADER_SIZE_BYTES)
        if self._sent[0] is block:
            self._sent.popleft()
        else:
            self._sent.remove(block)
        self.last_acked_number = max(self.last_acked_number, block.event_number + block.event_count - 1)
        block.settle(Stored(self.segment_id, offset, block.event_number, block.event_count))
        self._owner.block_settled(block.cost_bytes)
        if self._retry is not None or self._refusal is not None:
            self._resume_when_answered()
            return
        if not self._sent and not self._queue:
            self.seal()
        self.pump()

    def block_failed(self, block: Block, error: MillraceError) -> None:
        """Keep a block for another attempt, or end the writer."""
        self._unanswered -= 1
        self._owner.block_answered(block.size + APPEND_HEADER_SIZE_BYTES)
        if isinstance(error, ConnectionLostError | OutcomeUnknownError):
            block.doubtful = True
        standing = self._retry is not None or self._refusal is not None
        if passes(error) or (standing and isinstance(error, EventNumberError)):
            if not standing:
                self._retry = error
            self._resume_when_answered()
            return
        if isinstance(error, SegmentSealedError):
            # The server would have acked what it had stored, so this word is final for all that was sent.
            for blocks in (self._sent, self._queue):
                for each in blocks:
                    each.doubtful = False
            self._refusal = error
            self._resume_when_answered()
            return
        if isinstance(error, SegmentNotFoundError) and not self.is_doubtful:
            self._refusal = error
            self._resume_when_answered()
            return
        if isinstance(error, SegmentNotFoundError):
            unknown = OutcomeUnknownError(f"segment {self.segment_id} is gone, and with it what it had stored")
            unknown.__cause__ = error
            error = unknown
        self._sent.remove(block)
        block.settle(error)
        self._owner.block_settled(block.cost_bytes)
        self._owner.fail(error)

    def resume(self) -> None:
        """Send again what was returned; called by the writer after the wait it was asked for."""
        if self._retry is not None and self._unanswered == 0:
            self._retry = None
        self.pump()

    # --- a segment that takes no more appends ---

    @property
    def is_doubtful(self) -> bool:
        """Whether something was sent of which it is not known whether it was stored."""
        return any(block.doubtful for blocks in (self._sent, self._queue) for block in blocks)

    @property
    def is_stalled(self) -> bool:
        """Whether the segment refused, and every block that was sent has been answered for."""
        return self._refusal is not None and self._unanswered == 0

    @property
    def is_vacant(self) -> bool:
        """Whether what the lane holds is known not to be stored: it is stalled, or has sent nothing that waits."""
        return self.is_stalled or (self._unanswered == 0 and not self._sent and not self.is_doubtful)

    def retry_refused(self) -> None:
        """Send again what a segment refused that was not sealed after all."""
        self._refusal = None
        self.pump()

    def take_unstored(self) -> list[Unstored]:
        """Take out everything that is not stored, in the order written. The lane must be vacant, and is then empty."""
        assert self.is_vacant
        self.seal()
        blocks = [*self._sent, *self._queue]
        self._sent.clear()
        self._queue.clear()
        taken = []
        for block in blocks:
            events = unpack_block(block.payload)
            assert events.timestamps is not None
            taken.append(
                Unstored(
                    events.values(), events.keys(), events.timestamps.tolist(), block.futures, block.cost_bytes,
                    block.settled,
                )
            )  # fmt: skip
        return taken

    def stop(self, error: MillraceError) -> None:
        """Fail everything that is not on its way; what is ends with its own answer, or with `error`."""
        self._retry = self._retry or error
        values, self.values = self.values, []
        futures, self.futures = self.futures, []
        self.keys, self.times = [], []
        if values:
            gathered = Block(
                self, bytearray(), event_number=0, event_count=len(values), futures=futures,
                cost_bytes=self.gathered_bytes,
            )  # fmt: skip
            self.gathered_bytes = 0
            gathered.settle(error)
            self._owner.block_settled(gathered.cost_bytes)
        if self._unanswered == 0:
            self._queue.extendleft(reversed(self._sent))
            self._sent.clear()
        while self._queue:
            block = self._queue.popleft()
            block.settle(error)
            self._owner.block_settled(block.cost_bytes)

    # --- inside ---

    def _turn(self) -> None:
        self.scheduled = False
        if not self._sent and not self._queue:
            self.seal()
        self.pump()

    def _pack(
        self,
        values: list[bytes],
        keys: list[str | None] | None,
        times: list[int],
        *,
        futures: "list[asyncio.Future[Stored]]",
        cost_bytes: int,
    ) -> None:
        """Queue the block of these events, or several where the server takes no append as large as one."""
        try:
            payload = self._packed(values, keys, times, behind=0)
        except EventTooLargeError as error:
            half = len(values) // 2
            if not half:  # the server took larger ones when the event was written
                self._refuse(futures, error, cost_bytes=cost_bytes)
                return
            half_cost_bytes = cost_bytes // 2
            for part, part_cost_bytes in (
                (slice(half), half_cost_bytes),
                (slice(half, None), cost_bytes - half_cost_bytes),
            ):
                self._pack(
                    values[part],
                    None if keys is None else keys[part],
                    times[part],
                    futures=futures[part],
                    cost_bytes=part_cost_bytes,
                )
            return
        self._block(payload, len(values), futures=futures, cost_bytes=cost_bytes)

    def _refuse(self, futures: "list[asyncio.Future[Stored]]", error: MillraceError, *, cost_bytes: int) -> None:
        """Fail an event that no append can hold, and with it the writer: what follows it may not overtake it."""
        refused = Block(self, bytearray(), event_number=0, event_count=1, futures=futures, cost_bytes=cost_bytes)
        refused.settle(error)
        self._owner.block_settled(cost_bytes)
        self._owner.fail(error)

    def _packed(self, values: list[bytes], keys: Keys, times: Timestamps, *, behind: int) -> bytearray:
        return pack_block(
            values,
            keys=keys,
            timestamps_us=times,
            first_event_number=self.last_number + behind + 1,
            compression=self._compression,
            size_bytes_max=self._owner.append_size_max,
        )

    def _block(
        self, payload: bytearray, count: int, *, futures: "list[asyncio.Future[Stored]]", cost_bytes: int
    ) -> Block:
        block = Block(
            self,
            payload,
            event_number=self.last_number + 1,
            event_count=count,
            futures=futures,
            cost_bytes=cost_bytes,
        )
        self.last_number += count
        self._queue.append(block)
        return block

    def _resume_when_answered(self) -> None:
        """Ask for another attempt, or another way, once every block that was sent has been answered for."""
        if self._unanswered:
            return
        self._queue.extendleft(reversed(self._sent))
        self._sent.clear()
        if self._refusal is not None:
            self._retry = None
            self._owner.lane_stalled(self)
        else:
            assert self._retry is not None
            self._owner.retry_wanted(self._retry)


def passes(error: MillraceError) -> bool:
    """Whether a numbered block may be sent again after this error: the server stores each number once."""
    return error.retriable or isinstance(error, OutcomeUnknownError | PipelineBrokenError)
