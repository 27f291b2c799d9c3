"""Replies of one connection to decided requests, until the decision is durable: without a task or a future.

A request of a transaction is decided in the walk over received frames. Its reply is known then, and follows the
decision in the log. It is encoded once the log has the batch, during the sync. Outcomes that became durable with the
batch are sent together: the acks of appends, and after them the replies, in one system call.
"""

import asyncio

from millrace.server.container.admission import ReplyTarget
from millrace.server.container.in_flight import FollowingReply, InFlight
from millrace.server.errors import DecisionLostError, LogFailedError
from millrace.wire import messages as m
from millrace.wire.errors import WireError
from millrace.wire.framing import encode

from .flow_control import FlowControl, Reason
from .latency import RequestTimer
from .reply_writer import ReplyWriter


class _UnsentReply(FollowingReply):
    """A reply that waits until its decision is durable.

    Args:
        is_new: whether the request was decided now; otherwise earlier.

    Attributes:
        held_bytes: of the memory for requests, until it is sent.
    """

    __slots__ = ("_error", "_frame", "_is_new", "_message", "_replies", "held_bytes", "timer")

    def __init__(
        self, replies: "PendingReplies", message: m.Message, timer: RequestTimer, *, is_new: bool, held_bytes: int
    ) -> None:
        super().__init__(replies.owner)
        self._replies = replies
        self._message = message
        self._is_new = is_new
        self._frame = b""
        self._error: Exception | None = None
        self.timer = timer
        self.held_bytes = held_bytes

    def settle(self, failure: LogFailedError | None = None) -> None:
        """Be sent together with the owner's other outcomes."""
        if failure is not None:
            self._error = failure if self._is_new else DecisionLostError()
        self._replies.settled(self)

    def encode(self) -> None:
        """Encode it, unless that was done."""
        if not self._frame and self._error is None:
            try:
                self._frame = encode(self._message, request_id=self.timer.request_id)
            except WireError as error:  # it is too large
                self._error = error

    def outcome(self) -> bytes | Exception:
        """Return the frame, or the error."""
        self.encode()
        return self._frame if self._error is None else self._error


class PendingReplies:
    """The pending replies, and those ready to be sent.

    Args:
        owner: calls `put` when outcomes are settled, of these as of its appends.
        count_max: at this number of pending replies, the connection is not read.
    """

    def __init__(
        self, owner: ReplyTarget, in_flight: InFlight, *, reply_writer: ReplyWriter, flow: FlowControl, count_max: int
    ) -> None:
        self.owner = owner
        self._in_flight = in_flight
        self._reply_writer = reply_writer
        self._flow = flow
        self._count_max = count_max
        self._count = 0
        self._unencoded: list[_UnsentReply] = []
        self._settled: list[_UnsentReply] = []

    def __len__(self) -> int:
        """The number of unsent replies."""
        return self._count

    def add(self, message: m.Message, timer: RequestTimer, *, is_new: bool, held_bytes: int) -> None:
        """Reply when the last submitted run is durable; called in the step that decided.

        Args:
            is_new: whether it was decided in that step; otherwise earlier.
            held_bytes: of the memory for requests, released when the reply is sent.
        """
        reply = _UnsentReply(self, message, timer, is_new=is_new, held_bytes=held_bytes)
        self._count += 1
        if self._count >= self._count_max:
            self._flow.set(Reason.REPLIES, True)
        if not self._unencoded:
            asyncio.get_running_loop().call_soon(self._encode)
        self._unencoded.append(reply)
        self._in_flight.follow(reply)
        if self._settled:  # nothing was in flight
            self.owner.settle()

    def settled(self, reply: _UnsentReply) -> None:
        """Record that a reply is ready."""
        self._settled.append(reply)

    def put(self) -> None:
        """Send the ready replies, with the next flush."""
        if not self._settled:
            return
        settled, self._settled = self._settled, []
        for reply in settled:
            self._reply_writer.requests.give(reply.held_bytes)
            outcome = reply.outcome()
            if isinstance(outcome, bytes):
                self._reply_writer.session.put(outcome)
            else:
                self._reply_writer.send_error(reply.timer.request_id, outcome)
            self._reply_writer.latency.answered(reply.timer)
        self._count -= len(settled)
        self._flow.set(Reason.REPLIES, self._count >= self._count_max)

    def _encode(self) -> None:
        unencoded, self._unencoded = self._unencoded, []
        for reply in unencoded:
            reply.encode()
