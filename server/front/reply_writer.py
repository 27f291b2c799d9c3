"""Writes replies, errors and data of one connection straight into its transport."""

import asyncio
from collections.abc import Callable
from typing import Final

from millrace.server.container.state.segment import Segment
from millrace.server.host.clock import Clock
from millrace.wire import messages as m
from millrace.wire.framing import encode, encode_data
from millrace.wire.server_session import ServerSession

from .counters import FrontCounters
from .latency import Latency
from .reader_memory import ReaderAccount
from .replies import error_reply
from .request_memory import RequestAccount

NO_REPLY: Final = 0
"""Instead of a request id, for a request without a reply: the ids of clients begin at 1."""


class ReplyWriter:
    """Sends frames over one connection; frames for a closing or closed one are dropped.

    Args:
        may_be_superseded: True if the lease may have expired, so another server may be the owner. Called when frames
            leave: a request may have waited while the process stalled.
        abort: ends the connection at once; called instead of sending then.

    Attributes:
        session: all frames go through it.
        counters: of all connections.
        account: of the memory for unsent bytes of readers.
        requests: the account of the memory of requests.
        latency: of answered requests.
        transport: None before the connection is made and after it is lost.
        is_full: the peer receives too slowly: nothing more is pushed now. Replies are still sent.
    """

    __slots__ = (
        "_abort", "_clock", "_is_flushing_soon", "_may_be_superseded", "account", "counters", "is_full", "latency",
        "requests", "session", "transport",
    )  # fmt: skip

    def __init__(
        self,
        session: ServerSession,
        *,
        clock: Clock,
        counters: FrontCounters,
        account: ReaderAccount,
        requests: RequestAccount,
        latency: Latency,
        may_be_superseded: Callable[[], bool],
        abort: Callable[[], None],
    ) -> None:
        self.session = session
        self._clock = clock
        self._may_be_superseded = may_be_superseded
        self._abort = abort
        self.counters = counters
        self.account = account
        self.requests = requests
        self.latency = latency
        self.transport: asyncio.Transport | None = None
        self.is_full = False
        self._is_flushing_soon = False

    def send(self, frame: bytes) -> None:
        """Send one frame."""
        self.session.put(frame)
        self.flush()

    def send_soon(self, frame: bytes) -> None:
        """Send one frame with the others of this turn of the loop: one system call answers several requests."""
        self.session.put(frame)
        if not self._is_flushing_soon:
            self._is_flushing_soon = True
            asyncio.get_running_loop().call_soon(self._flush_soon)

    def _flush_soon(self) -> None:
        self._is_flushing_soon = False
        self.flush()

    def flush(self) -> None:
        """Pass the outbox of the session to the transport."""
        size = self.session.outbox_bytes
        if not size:
            return
        if self._may_be_superseded():
            self._abort()
            return
        now_s = self._clock.monotonic_s()
        buffers = self.session.take_outbox(now_s)
        if self.transport is not None and not self.transport.is_closing():
            self.transport.writelines(buffers)
            self.account.sent(size, now_s)

    def send_data(self, request_id: int, segment: Segment, offset: int, pieces: list[memoryview]) -> int:
        """Send a DATA frame; return its flags.

        Its payload is copied only if a view would keep much more memory alive, until the peer has received it.
        """
        size = sum(map(len, pieces))
        flags = 0
        if offset + size == segment.length:
            flags = m.DataFlag.AT_TAIL | (m.DataFlag.END_OF_SEGMENT if segment.sealed else 0)
        self.counters.sent_data_bytes_total += size
        self.session.put(
            *encode_data(
                request_id=request_id,
                segment_id=segment.segment_id,
                offset=offset,
                length=segment.length,
                flags=flags,
                pieces=[piece if _is_most(piece) else memoryview(bytes(piece)) for piece in pieces],
            )
        )
        self.flush()
        return flags

    def send_error(self, request_id: int, error: BaseException) -> None:
        """Send an ERROR frame, unless the request asked for no reply."""
        self.counters.requests_failed_total += 1
        reply = error_reply(error)  # logs unexpected errors
        if request_id != NO_REPLY:
            self.send(encode(reply, request_id=request_id))


def _is_most(piece: memoryview) -> bool:
    """Return whether a view is at least seven eighths of the memory that it keeps alive."""
    return 8 * len(piece) >= 7 * memoryview(piece.obj).nbytes
