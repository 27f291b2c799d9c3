"""One connection: bytes in, frames to the dispatcher, replies out.

The hot path has no coroutine. `buffer_updated` walks the frames that have arrived; appends go to the container as runs,
reads are answered from memory in the same step, everything else is carried out by a task of its own, a bounded number
at a time.

This module knows the socket, the clock and the timer. What may arrive when is the session's to say, why the socket is
left unread is `flow_control`'s, and what a frame sets going is the `dispatcher`'s.
"""

import asyncio
import hmac
import logging
from collections.abc import Callable
from typing import Final, cast

from millrace.server.host.clock import Clock
from millrace.wire import messages as m
from millrace.wire.append_scan import scan_run
from millrace.wire.checksum import crc32c
from millrace.wire.errors import ChecksumError, ErrorCode, ForeignProtocolError, ProtocolError, WireError
from millrace.wire.framing import decode, encode
from millrace.wire.limits import APPEND_HEADER_SIZE_BYTES, APPENDS_IN_FLIGHT_MAX, CONSOLE_PORT, FRAME_SIZE_BYTES_MAX
from millrace.wire.receive_buffer import ReceiveBuffer, checked_control
from millrace.wire.session import Role, Session, SessionAction, SessionState, negotiate_version

from .counters import FrontCounters
from .dispatcher import Dispatcher
from .flow_control import FlowControl, Reason
from .options import FrontOptions
from .outlet import Outlet
from .replies import error_reply, plain_reply
from .router import Handlers

logger = logging.getLogger(__name__)

_APPEND: Final = int(m.Append.type)
SERVER_NAME: Final = "millrace"


class Connection(asyncio.BufferedProtocol):
    """The server's end of one connection. `closed` is called once, when it is gone."""

    def __init__(
        self,
        *,
        handlers: Handlers,
        options: FrontOptions,
        clock: Clock,
        counters: FrontCounters,
        server_id: bytes,
        closed: Callable[["Connection"], None],
    ) -> None:
        self._container = handlers.container
        self._options = options
        self._clock = clock
        self._counters = counters
        self._server_id = server_id
        self._closed = closed
        self._buffer = ReceiveBuffer(frame_size_max=FRAME_SIZE_BYTES_MAX)
        self._session = Session(
            Role.SERVER,
            now_s=clock.monotonic_s(),
            handshake_timeout_s=options.handshake_timeout_s,
            keepalive_s=options.keepalive_s,
        )
        self._outlet = Outlet(self._session, clock=clock, counters=counters)
        self._flow = FlowControl(self._advance)
        self._dispatcher = Dispatcher(
            handlers,
            session=self._session,
            outlet=self._outlet,
            flow=self._flow,
            options=options,
            counters=counters,
            abort=self.abort,
            progressed=self._end_if_drained,
        )
        self._peer = ""
        self._timer: asyncio.TimerHandle | None = None
        # When the first byte of the pending frame came; 0 while none is pending, or it is us who do not read.
        self._frame_began_s = 0.0
        self._is_reading = True
        self._is_advancing = False

    # --- life ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to wait for HELLO."""
        # Not an isinstance check: the transports of uvloop do not inherit from those of asyncio.
        self._outlet.transport = cast("asyncio.Transport", transport)
        self._peer = str(transport.get_extra_info("peername"))
        self._outlet.transport.set_write_buffer_limits(high=self._options.write_buffer_bytes_high)
        self._counters.connections_total += 1
        self._arm_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything; appends on their way still become durable."""
        self._session.close()
        self._outlet.transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._dispatcher.cancel()
        self._closed(self)
        logger.debug("connection closed peer=%s error=%r", self._peer, exc)

    def drain(self) -> None:
        """Start nothing new; what is under way goes on. The connection ends itself when nothing is."""
        self._session.drain()
        self._dispatcher.drain()
        self._end_if_drained()

    def abort(self) -> None:
        """End at once."""
        self._session.close()
        if self._outlet.transport is not None:
            self._outlet.transport.abort()

    def _end(self) -> None:
        """Close after what was written."""
        self._session.close()
        if self._outlet.transport is not None:
            self._outlet.transport.close()

    def _end_if_drained(self) -> None:
        if self._session.state is SessionState.CLOSED or (self._session.is_draining and self._dispatcher.is_idle):
            self._end()

    def _arm_timer(self) -> None:
        delay_s = self._session.next_deadline_s() - self._clock.monotonic_s()
        delay_s = max(0.01, min(delay_s, self._options.frame_timeout_s))
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._deadline)

    def _deadline(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._session.state is SessionState.CLOSED:
            # Closed long ago, and the peer still has not taken what was sent.
            self.abort()
            return
        if not self._is_reading and not self._outlet.is_full:
            # We do not listen: that nothing arrives says nothing about the peer.
            self._session.received(now_s)
        action = self._session.on_deadline(now_s)
        if self._frame_began_s and now_s - self._frame_began_s > self._options.frame_timeout_s:
            logger.warning("frame does not arrive peer=%s since_s=%.1f", self._peer, now_s - self._frame_began_s)
            action = SessionAction.CLOSE
        if action is SessionAction.CLOSE:
            logger.info("connection timed out peer=%s", self._peer)
            self.abort()
            return
        if action is SessionAction.SEND_PING:
            self._outlet.send(encode(m.Ping()))
        self._arm_timer()

    # --- bytes ---

    def get_buffer(self, sizehint: int) -> memoryview:
        """Lend the free end of the receive buffer to the socket."""
        return self._buffer.writable()

    def buffer_updated(self, nbytes: int) -> None:
        """Take what has arrived."""
        self._counters.received_bytes_total += nbytes
        self._buffer.received(nbytes)
        now_s = self._clock.monotonic_s()
        self._session.received(now_s)
        self._advance()
        # A frame has until its time-out from when its first byte came, however its bytes trickle.
        if not self._buffer.pending or not self._is_reading:
            self._frame_began_s = 0.0
        elif not self._frame_began_s:
            self._frame_began_s = now_s

    def eof_received(self) -> bool:
        """Close when the peer does."""
        return False

    def pause_writing(self) -> None:
        """The peer takes too little: read nothing more from it."""
        self._outlet.is_full = True
        self._flow.set(Reason.REPLIES_UNSENT, True)

    def resume_writing(self) -> None:
        """The peer took what was sent."""
        self._outlet.is_full = False
        self._dispatcher.write_resumed()
        self._flow.set(Reason.REPLIES_UNSENT, self._outlet.is_full)

    def _advance(self) -> None:
        """Walk the whole frames that have arrived; read the socket if and only if nothing is in the way then.

        This is the only place that does either. What a frame does may change what is in the way, and so call this
        again: such a call returns at once, for the walk that is under way looks before each frame.
        """
        if self._is_advancing or self._outlet.transport is None or self._session.state is SessionState.CLOSED:
            return
        self._is_advancing = True
        try:
            while not self._flow.is_blocked and self._take_frames():
                pass
            self._dispatcher.appends.settle()
        except WireError as error:
            self._protocol_error(error)
        finally:
            self._is_advancing = False
        self._switch_reading()

    def _switch_reading(self) -> None:
        transport = self._outlet.transport
        if transport is None or self._is_reading != self._flow.is_blocked:
            return
        self._is_reading = not self._flow.is_blocked
        if self._is_reading:
            transport.resume_reading()
        else:
            transport.pause_reading()

    # --- frames ---

    def _take_frames(self) -> bool:
        """Take one frame, or all appends of a run; return whether there may be more."""
        buffer = self._buffer
        end = buffer.frame_end()
        if not end or self._session.state is SessionState.CLOSED:
            return False
        if buffer.data[buffer.start + 8] == _APPEND:
            self._take_appends(buffer.start, end)
        else:
            self._take_frame(buffer.start, end)
        return True

    def _take_appends(self, start: int, end: int) -> None:
        buffer = self._buffer
        view = buffer.view(0, buffer.end)
        # A single append may be larger than the log takes; the container says so. A run of several never is.
        limit = min(buffer.end, max(end, start + self._container.run_size_bytes_max))
        run = scan_run(buffer.data, view, start=start, end=limit)
        assert run is not None, "a whole append is here"
        self._session.on_frame(_APPEND)
        self._session.check_request_id(_APPEND, run.request_id, count=run.frame_count)
        buffer.consume(start + len(run.frames))
        self._frame_began_s = 0.0
        self._dispatcher.take_appends(run)

    def _take_frame(self, start: int, end: int) -> None:
        frame = checked_control(self._buffer.view(start, end))
        expected, actual = int.from_bytes(frame[4:8], "little"), crc32c(frame[8:], len(frame))
        if actual != expected:
            raise ChecksumError(expected=expected, actual=actual)
        self._session.on_frame(frame[8])
        header, message = decode(frame)
        if header.flags or header.event_count:
            raise ProtocolError(f"{message.type.name} with flags or an event count")
        self._session.check_request_id(header.type, header.request_id)
        self._buffer.consume(end)
        self._frame_began_s = 0.0
        self._counters.frames_total += 1
        if isinstance(message, m.Hello):
            self._greet(message, header.request_id)
        else:
            self._dispatcher.take(message, header.request_id)

    def _greet(self, message: m.Hello, request_id: int) -> None:
        version = negotiate_version(version_min=message.version_min, version_max=message.version_max)
        if self._options.token and not hmac.compare_digest(self._options.token.encode(), message.token.encode()):
            logger.warning("authentication failed peer=%s", self._peer)
            refusal = plain_reply(ErrorCode.UNAUTHENTICATED, "the token is not accepted")
            self._outlet.send(encode(refusal, request_id=request_id))
            self._end()
            return
        reply = m.HelloReply(
            version=version,
            features=0,
            frame_size_max=FRAME_SIZE_BYTES_MAX,
            append_size_max=self._container.run_size_bytes_max - APPEND_HEADER_SIZE_BYTES,
            appends_in_flight_max=APPENDS_IN_FLIGHT_MAX,
            server_id=self._server_id,
            server=SERVER_NAME,
        )
        self._outlet.send(encode(reply, request_id=request_id))

    def _protocol_error(self, error: WireError) -> None:
        """Tell the peer once what it did, and end."""
        self._counters.protocol_errors_total += 1
        if isinstance(error, ForeignProtocolError):
            self._counters.foreign_protocol_total += 1
            logger.warning(
                "%s spoken to the data port peer=%s: clients speak Millrace's protocol here, without TLS; the web "
                "console listens on its own port (by default %d)",
                error.protocol, self._peer, CONSOLE_PORT,
            )  # fmt: skip
            self.abort()
            return
        logger.warning("protocol error peer=%s error=%s", self._peer, error)
        self._outlet.send(encode(error_reply(error)))
        self._end()
