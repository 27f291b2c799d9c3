"""Resolves the outcomes of blocks in the order written.

The blocks of a segment have their outcomes in order. A call of `write_many` with blocks in several segments has its
outcome with the last of them, and a key in it may be in any of them. So until then everything written after the call
waits, even in other segments: its events are durable, but their futures are not done yet. A writer without such calls
never waits.
"""

from bisect import bisect_left, insort
from operator import attrgetter

from millrace.model.errors import MillraceError

from .events import Block, BlockOutcome, Call, resolve

_ORDER = attrgetter("order")


class Outcomes:
    """Resolves the futures of one writer."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        # Calls with several blocks and no outcome yet, in the order written.
        self._calls: list[Call] = []

    def expect(self, call: Call, added: int) -> None:
        """Count the blocks into which a call is divided; `added` is negative for blocks that they replace."""
        call.missing += added
        if (call.missing > 1 or call.is_partial) and not call.is_divided:
            call.is_divided = True
            insort(self._calls, call, key=_ORDER)

    def settle(self, block: Block, outcome: BlockOutcome) -> None:
        """Resolve the futures of a block, now or after those of earlier writes."""
        call = block.call
        if call is not None:
            call.missing -= 1
            if not isinstance(call.outcome, MillraceError):
                call.outcome = outcome
        if not self._calls:
            block.resolve(outcome)
            return
        if call is None or not call.is_divided:
            before = bisect_left(self._calls, block.order, key=_ORDER)
            if before:
                self._calls[before - 1].followers.append((block, outcome))
            else:
                block.resolve(outcome)
        while self._calls and not self._calls[0].missing:
            self._resolve(self._calls.pop(0))

    @staticmethod
    def _resolve(call: Call) -> None:
        assert call.outcome is not None
        resolve([call.future], call.outcome)
        for block, outcome in call.followers:
            block.resolve(outcome)
        call.followers.clear()
