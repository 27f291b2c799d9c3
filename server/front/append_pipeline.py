"""The appends of one connection that await their outcome, in the order of their request ids.

Outcomes leave in that order too: acks are cumulative, an error comes after all acks of earlier appends.

A failed append breaks the pipeline of its writer to its segment (appends without a writer share one): what the client
had already sent behind it must not be applied, or an ordered pipeline would skip. The server cannot know what the
client had sent before it saw the error, so it asks: a PING goes out behind the error, and appends of that writer to
that segment fail until its PONG comes back. Every client answers PINGs in order with what it sends, so this needs
nothing of it. The error itself may have to wait for earlier appends; its PING waits with it, or the client would
answer before it could know.
"""

from collections import deque
from typing import Final

from millrace.server.container.admission import PendingAppend
from millrace.server.errors import PipelineBrokenError, ServerError
from millrace.wire import messages as m
from millrace.wire.errors import ProtocolError
from millrace.wire.framing import encode

from .replies import error_reply

BROKEN_SEGMENTS_COUNT_MAX: Final = 4096
ENTRIES_PER_ACK_COUNT_MAX: Final = 16_384
"""An ack is a control frame, which has at most 1 MiB."""


class AppendPipeline:
    """Pending appends and broken segments of one connection."""

    __slots__ = ("_barrier", "_broken", "_pending", "count")

    def __init__(self) -> None:
        self._pending: deque[PendingAppend] = deque()
        # By segment and writer: id of the PING whose PONG mends it, 0 while the error has not been sent.
        self._broken: dict[tuple[int, int], int] = {}
        self._barrier = 0
        self.count = 0  # appends (not runs) that await their outcome

    def add(self, pending: list[PendingAppend]) -> None:
        """Take note of appends that were admitted; one that failed already breaks its segment from here on."""
        for append in pending:
            self._pending.append(append)
            self.count += append.count
            if append.error is not None:
                self._broken.setdefault((append.segment_id, append.writer_number), 0)

    def refuse(self, append: PendingAppend, error: ServerError) -> None:
        """Take note of appends that were not: the segment is broken from here on.

        Raises:
            ProtocolError: the client goes on to too many other segments and does not answer PINGs.
        """
        append.fail(error)
        self.add([append])
        if len(self._broken) > BROKEN_SEGMENTS_COUNT_MAX:
            raise ProtocolError(f"appends to {len(self._broken)} segments failed, and no PONG came")

    def check(self, segment_id: int, writer_number: int = 0) -> None:
        """Raise PipelineBrokenError if an earlier append to the segment failed and the client may not know yet.

        Each writer has a pipeline of its own: what one was refused says nothing of what another has stored.
        """
        if self._broken and (segment_id, writer_number) in self._broken:
            raise PipelineBrokenError("an earlier append of this pipeline failed; this one was not applied")

    def pong(self, barrier: int) -> None:
        """Take note that the client has seen everything up to the PING with that id."""
        if self._broken:
            self._broken = {which: asked for which, asked in self._broken.items() if asked == 0 or asked > barrier}

    def settle(self) -> list[bytes]:
        """Return the frames for all outcomes that are known and whose turn it is."""
        pending = self._pending
        frames: list[bytes] = []
        entries: list[m.AppendAckEntry] = []
        last_request_id = 0
        told = False
        while pending and pending[0].settled:
            append = pending.popleft()
            self.count -= append.count
            if append.error is None:
                if len(entries) == ENTRIES_PER_ACK_COUNT_MAX:
                    frames.append(encode(m.AppendAck(entries), request_id=last_request_id))
                    entries = []
                last_request_id = append.request_id + append.count - 1
                entries.append(m.AppendAckEntry(append.request_id, append.offset, append.count, int(append.duplicate)))
                continue
            if entries:
                frames.append(encode(m.AppendAck(entries), request_id=last_request_id))
                entries = []
            reply = error_reply(append.error)
            frames += [encode(reply, request_id=append.request_id + number) for number in range(append.count)]
            which = (append.segment_id, append.writer_number)
            if self._broken.get(which) == 0:
                if not told:
                    self._barrier += 1
                    told = True
                self._broken[which] = self._barrier
        if entries:
            frames.append(encode(m.AppendAck(entries), request_id=last_request_id))
        if told:
            frames.append(encode(m.Ping(), request_id=self._barrier))
        return frames
