"""Who waits at the tail of a segment: a read that is parked, or a subscription that is pushed to.

Neither has a coroutine. The container calls `segment_changed` in the step in which bytes became durable, and the answer
is handed to the socket in that same step. Only bytes that have to be fetched from tier 2 take a task.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from millrace.server.container.container import SegmentContainer
from millrace.server.container.state.segment import Segment
from millrace.server.errors import ServerError
from millrace.wire.frames import DataFlag
from millrace.wire.limits import MIB, READ_SIZE_BYTES_MAX

PUSH_SIZE_BYTES_MAX: Final = 1 * MIB
PUSHES_AT_ONCE_MAX: Final = 4
"""After so many, a subscription that is far behind lets others go first."""


class ReplySink(Protocol):
    """The connection that a reader belongs to."""

    @property
    def write_paused(self) -> bool:
        """Whether the peer takes too little: nothing more should be pushed now."""
        ...

    def send_data(self, request_id: int, segment: Segment, offset: int, pieces: list[memoryview]) -> int:
        """Send a DATA frame; return its flags."""
        ...

    def send_error(self, request_id: int, error: BaseException) -> None:
        """Send an ERROR frame."""
        ...

    def start_task(self, coroutine: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run a coroutine for as long as the connection lives."""
        ...

    def reader_done(self, request_id: int) -> None:
        """Forget the reader."""
        ...


class ParkedRead:
    """A read that waits at the tail for bytes, for the end of the segment, or for its time to run out."""

    __slots__ = ("_container", "_offset", "_request_id", "_segment", "_sink", "_size_max", "_timer")

    def __init__(
        self,
        sink: ReplySink,
        container: SegmentContainer,
        segment: Segment,
        *,
        request_id: int,
        offset: int,
        size_max: int,
        wait_s: float,
    ) -> None:
        self._sink = sink
        self._container = container
        self._segment = segment
        self._request_id = request_id
        self._offset = offset
        self._size_max = size_max
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._answer)
        segment.watchers.add(self)

    def segment_changed(self) -> None:
        """Answer, for there is something to say."""
        self._answer()

    def write_resumed(self) -> None:
        """Nothing to do: an answer is never held back."""

    def cancel(self) -> None:
        """Leave without an answer."""
        self._timer.cancel()
        self._segment.watchers.discard(self)

    def _answer(self) -> None:
        self.cancel()
        self._sink.reader_done(self._request_id)
        try:
            pieces = self._container.read_now(self._segment, self._offset, self._size_max)
        except ServerError as error:
            self._sink.send_error(self._request_id, error)
            return
        # What has just become durable is in the tail: it never has to be fetched.
        self._sink.send_data(self._request_id, self._segment, self._offset, pieces or [])


class Subscription:
    """Pushes a segment from an offset on, as far as the reader gave credit."""

    __slots__ = (
        "_container", "_credit_bytes", "_fetching", "_has_ended", "_is_continuing", "_offset", "_request_id",
        "_segment", "_sink",
    )  # fmt: skip

    def __init__(
        self,
        sink: ReplySink,
        container: SegmentContainer,
        segment: Segment,
        *,
        request_id: int,
        offset: int,
        credit_bytes: int,
    ) -> None:
        self._sink = sink
        self._container = container
        self._segment = segment
        self._request_id = request_id
        self._offset = offset
        self._credit_bytes = credit_bytes
        self._fetching: asyncio.Task[None] | None = None
        self._is_continuing = False
        self._has_ended = False
        segment.watchers.add(self)

    def segment_changed(self) -> None:
        """Push what there is now."""
        self.pump()

    def write_resumed(self) -> None:
        """Push what was held back while the peer took too little."""
        self.pump()

    def give_credit(self, credit_bytes: int) -> None:
        """Let the subscription push that much more."""
        self._credit_bytes += credit_bytes
        self.pump()

    def cancel(self) -> None:
        """Push nothing any more."""
        self._has_ended = True
        self._segment.watchers.discard(self)
        if self._fetching is not None:
            self._fetching.cancel()

    def pump(self) -> None:
        """Push from memory as long as there are bytes, credit and room; fetch what is not in memory."""
        try:
            for _ in range(PUSHES_AT_ONCE_MAX):
                if self._fetching is not None or self._sink.write_paused:
                    return
                pieces = self._container.read_now(self._segment, self._offset, self._size_wanted)
                if pieces is None:
                    if self._credit_bytes > 0:
                        self._fetching = self._sink.start_task(self._fetch(), name=f"subscription {self._request_id}")
                    return
                if not pieces and not self._segment.sealed:
                    return
                if pieces and self._credit_bytes <= 0:
                    return
                if self._push(pieces):
                    return
        except ServerError as error:
            self._fail(error)
        else:
            if not self._is_continuing:
                self._is_continuing = True
                asyncio.get_running_loop().call_soon(self._continue)

    def _continue(self) -> None:
        self._is_continuing = False
        if not self._has_ended:
            self.pump()

    @property
    def _size_wanted(self) -> int:
        return max(1, min(self._credit_bytes, PUSH_SIZE_BYTES_MAX, READ_SIZE_BYTES_MAX))

    def _push(self, pieces: list[memoryview]) -> bool:
        """Send one frame; return whether it was the last."""
        size = sum(map(len, pieces))
        flags = self._sink.send_data(self._request_id, self._segment, self._offset, pieces)
        self._offset += size
        self._credit_bytes -= size
        if flags & DataFlag.END_OF_SEGMENT:
            self.cancel()
            self._sink.reader_done(self._request_id)
            return True
        return False

    async def _fetch(self) -> None:
        try:
            pieces = await self._container.read(self._segment, self._offset, self._size_wanted)
        except ServerError as error:
            self._fetching = None
            self._fail(error)
            return
        self._fetching = None
        if not pieces or not self._push(pieces):
            self.pump()

    def _fail(self, error: ServerError) -> None:
        self.cancel()
        self._sink.reader_done(self._request_id)
        self._sink.send_error(self._request_id, error)
