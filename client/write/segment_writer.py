"""The sender of one writer to one segment: a state machine that knows no connection, no clock and no task.

Its blocks are sent in order. After a transient error (a lost connection, a full disk) all that was sent is recalled:
once each sent block has been answered for, those without an ack go back before the queue, and the same blocks are sent
again, under the same event numbers, of which the server stores each once.

    SENDING      blocks are sent, as far as there is room
    INTERRUPTED  a transient error came; what has no ack waits to be resumed
    REJECTED     the segment takes no more appends; what is held is not stored, and must go to its successors
    STOPPED      nothing is sent any more; what is held fails, or was moved

What a state asks for is done when all that was sent is answered: `answered_state` tells. Then no event but RESUME and
STOP can come.

A segment that was sealed acks what it has stored, also when that is sent again, and stores nothing from the first block
on that it rejects. So what a REJECTED writer holds is exactly what the successors must get. Of a deleted segment it is
not known what it had stored: a block that was sent before on a connection that was lost has an unknown outcome, unless
its events have sequences. Then the writer asks the stream for them (`is_lost`, `decide_unknown`).
"""

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from operator import attrgetter
from typing import Final

from millrace.client.errors import (
    ConnectionLostError,
    EventNumberError,
    OutcomeUnknownError,
    SegmentNotFoundError,
    SegmentSealedError,
    WriterExpiredError,
)
from millrace.client.transport.retry import may_resend
from millrace.model.errors import MillraceError

from .accumulator import Accumulator
from .events import Block


class SenderState(Enum):
    """The state of a segment writer; see the module docstring."""

    SENDING = auto()
    INTERRUPTED = auto()
    REJECTED = auto()
    STOPPED = auto()


class SenderEvent(Enum):
    """The events that change the state of a segment writer."""

    INTERRUPT = auto()
    """A sent block was answered with a transient error."""
    REJECT = auto()
    """A sent block was rejected, because the segment accepts no more appends."""
    FAIL = auto()
    """A sent block was answered with an error that ends the writer."""
    RESUME = auto()
    """Interrupted blocks, or blocks rejected by a segment that turned out to be open, are sent again."""
    STOP = auto()
    """The writer ends, or the segment was replaced."""


SENDING, INTERRUPTED, REJECTED, STOPPED = SenderState
INTERRUPT, REJECT, FAIL, RESUME, STOP = SenderEvent

TRANSITIONS: Final[dict[SenderState, dict[SenderEvent, SenderState]]] = {
    SENDING: {INTERRUPT: INTERRUPTED, REJECT: REJECTED, FAIL: STOPPED, STOP: STOPPED},
    INTERRUPTED: {INTERRUPT: INTERRUPTED, FAIL: STOPPED, RESUME: SENDING, STOP: STOPPED},
    REJECTED: {INTERRUPT: REJECTED, REJECT: REJECTED, FAIL: STOPPED, RESUME: SENDING, STOP: STOPPED},
    STOPPED: {INTERRUPT: STOPPED, REJECT: STOPPED, FAIL: STOPPED, STOP: STOPPED},
}
"""Every legal event of every state, and the state after it."""


_EVENT_NUMBER: Final = attrgetter("event_number")


class SegmentWriter:
    """The blocks of one writer for one segment, until they are stored or removed.

    Attributes:
        last_acked_number: of the last event that is known to be stored.
        interruption: the error that sent blocks were recalled for last.
        is_refusing: whether a block was rejected, and none was stored since sending was resumed.
    """

    __slots__ = (
        "_last_sequence", "_queue", "_returned", "_sent", "_unknown_through", "accumulator", "interruption",
        "is_refusing", "last_acked_number", "segment_id", "state",
    )  # fmt: skip

    def __init__(self, segment_id: int, accumulator: Accumulator) -> None:
        self.segment_id = segment_id
        self.accumulator = accumulator
        self.last_acked_number = accumulator.last_number
        self.state = SENDING
        self.interruption: MillraceError | None = None
        self.is_refusing = False
        # To be sent, in order.
        self._queue: deque[Block] = deque()
        # In flight, in the order sent.
        self._sent: deque[Block] = deque()
        # Answered with an error, while others are in flight; they go back before the queue.
        self._returned: list[Block] = []
        # The last event number that was sent on a connection that was lost. Of a block up to it that has no ack, only
        # the segment can tell whether it is stored.
        self._unknown_through = 0
        # Of the last block that was queued.
        self._last_sequence = -1

    @property
    def answered_state(self) -> SenderState | None:
        """The state, if all that was sent is answered."""
        return None if self._sent else self.state

    @property
    def is_idle(self) -> bool:
        """Whether it holds no block."""
        return not (self._sent or self._returned or self._queue)

    @property
    def first_sequence(self) -> int | None:
        """The lowest sequence that it holds, including gathered events; None if there is none."""
        ascending = self._sent or self._queue
        sequences = ascending[0].sequences if ascending else self.accumulator.sequences
        lowest = sequences[0] if sequences else None
        for block in self._returned:
            if block.sequences and (lowest is None or block.sequences[0] < lowest):
                lowest = block.sequences[0]
        return lowest

    @property
    def has_unknown(self) -> bool:
        """Whether it holds a block with an unknown outcome."""
        return self._unknown_through > self.last_acked_number

    @property
    def held_count(self) -> int:
        """The number of held events without an outcome, including gathered ones."""
        blocks = (*self._sent, *self._returned, *self._queue)
        return sum(block.event_count for block in blocks) + len(self.accumulator.values)

    @property
    def unknown_count(self) -> int:
        """How many of them may be stored."""
        unanswered = sum(block.event_count for block in self._sent)
        answered = (*self._returned, *self._queue)
        return unanswered + sum(each.event_count for each in answered if each.last_number <= self._unknown_through)

    @property
    def is_all_sent(self) -> bool:
        """Whether every block that it holds is in flight."""
        return not (self._queue or self._returned)

    @property
    def is_drained(self) -> bool:
        """Whether nothing of what it holds is stored, or ever will be without being sent again."""
        return not (self._sent or self.has_unknown)

    @property
    def is_lost(self) -> bool:
        """Whether its segment is gone, and cannot report any more which blocks it has stored."""
        return self.answered_state is REJECTED and self.has_unknown

    def holds(self, event_number: int) -> bool:
        """Whether an event up to that number is neither stored nor removed."""
        return bool(self._returned) or any(
            bool(blocks) and blocks[0].event_number <= event_number for blocks in (self._sent, self._queue)
        )

    def take_stored(self) -> list[Block]:
        """Remove the held blocks that are not in flight, in the order written: all are known to be stored."""
        blocks = sorted([*self._returned, *self._queue], key=_EVENT_NUMBER)
        self._returned.clear()
        self._queue.clear()
        if blocks:
            self.last_acked_number = max(self.last_acked_number, blocks[-1].last_number)
        return blocks

    # --- blocks out ---

    def add(self, block: Block) -> None:
        """Queue the next block. The sequences of a segment ascend: the server takes others for stored."""
        if block.sequences is not None:
            assert block.sequences[0] > self._last_sequence, "sequences of a segment ascend"
            self._last_sequence = block.sequences[-1]
        self._queue.append(block)

    def next_block(self) -> Block | None:
        """Return the block to be sent now, if one is."""
        return self._queue[0] if self.state is SENDING and self._queue else None

    def sent(self) -> None:
        """Count the next block as in flight."""
        assert self.state is SENDING
        self._sent.append(self._queue.popleft())

    # --- answers in, once for each sent block ---

    def acked(self, block: Block) -> list[Block]:
        """Forget a block that is stored, and return it after those that are stored since it is.

        The numbers of a segment are stored in order: a block before it whose outcome was said to be unknown is, too.
        """
        stored = [block]
        if self._returned:
            stored += [each for each in self._returned if each.last_number < block.event_number]
            stored.sort(key=_EVENT_NUMBER)
            self._returned = [each for each in self._returned if each not in stored]
        self._land(block)
        self.last_acked_number = max(self.last_acked_number, block.last_number)
        if self.state is SENDING:
            self.is_refusing = False
        return stored

    def failed(self, block: Block, error: MillraceError) -> None:
        """Keep a block without an ack; `error` is set on it if that ends the writer."""
        self._returned.append(block)
        self._land(block)
        # After a rejected block nothing is stored, whatever happened to the answer.
        if isinstance(error, ConnectionLostError | OutcomeUnknownError) and self.state is not REJECTED:
            self._unknown_through = max(self._unknown_through, block.last_number)
        event = self._event_of(error, block)
        if event is INTERRUPT:
            if self.state is SENDING:  # those after it only follow from it
                self.interruption = error
        elif event is REJECT:
            self.is_refusing = True
            if isinstance(error, SegmentSealedError):
                # The segment would have acked what it had stored, so this is final for all that was sent.
                self._unknown_through = 0
        else:
            block.error = error
            if isinstance(error, SegmentNotFoundError):
                block.error = OutcomeUnknownError(f"segment {self.segment_id} was deleted, and may have stored this")
                block.error.__cause__ = error
        self._change(event)

    # --- what the writer decides ---

    def resume(self) -> None:
        """Send recalled or rejected blocks again."""
        assert not self._sent, "answers are awaited"
        self._change(RESUME)

    def decide_unknown(self, is_stored: Callable[[Block], bool]) -> list[Block]:
        """Remove what the segment stored before it was gone, and return it in the order written.

        Args:
            is_stored: whether a block is; of each it is asked that was sent on a connection that was lost.
        """
        assert self.is_lost
        stored: list[Block] = []
        # A segment stores blocks in their order.
        while self._queue and self._queue[0].last_number <= self._unknown_through and is_stored(self._queue[0]):
            stored.append(self._queue.popleft())
            self.last_acked_number = stored[-1].last_number
        self._unknown_through = 0
        return stored

    def stop(self) -> None:
        """Stop sending; once nothing is in flight, `remove_all` returns the held blocks."""
        self._change(STOP)

    def remove_all(self) -> list[Block]:
        """Remove what is held by a segment writer that was stopped, and return it in the order written."""
        assert self.answered_state is STOPPED
        blocks = list(self._queue)
        self._queue.clear()
        return blocks

    def reason(self, block: Block, error: MillraceError) -> MillraceError:
        """Return why a block that was removed is lost, if `error` ended the writer."""
        error = block.error or error
        if not (isinstance(error, WriterExpiredError) and 0 < block.event_number <= self._unknown_through):
            return error
        unknown = OutcomeUnknownError(f"sent, and not known to be stored when the writer expired: {error}")
        unknown.__cause__ = error
        return unknown

    # --- inside ---

    def _change(self, event: SenderEvent) -> None:
        """Go to the state that follows; the only place that does."""
        following = TRANSITIONS[self.state].get(event)
        assert following is not None, f"{event} in {self.state}"
        self.state = following

    def _land(self, block: Block) -> None:
        """Count a block as no longer in flight; the last one brings back those that failed."""
        assert self._sent, "nothing is in flight"
        if self._sent[0] is block:
            self._sent.popleft()
        else:
            self._sent.remove(block)
        if not self._sent:
            self._queue.extendleft(sorted(self._returned, key=_EVENT_NUMBER, reverse=True))
            self._returned.clear()

    def _event_of(self, error: MillraceError, block: Block) -> SenderEvent:
        if self.state is INTERRUPTED and isinstance(error, SegmentSealedError | SegmentNotFoundError):
            # It says nothing of the blocks before: they may be stored, and are asked for by sending them again.
            return INTERRUPT
        if isinstance(error, SegmentSealedError):
            return REJECT
        # Of events with sequences the stream can tell what is stored, also where their segment is gone.
        if isinstance(error, SegmentNotFoundError) and (block.sequences is not None or not self.has_unknown):
            return REJECT
        # After a block that was not stored, the numbers of those sent after it leave a gap.
        if may_resend(error) or (isinstance(error, EventNumberError) and self.state is not SENDING):
            return INTERRUPT
        return FAIL
