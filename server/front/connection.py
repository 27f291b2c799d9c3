"""One connection: bytes in, frames to the dispatcher, replies out.

The hot path has no coroutine. `buffer_updated` walks the received frames; appends go to the container as runs, reads
are answered from memory in the same step, every other request is carried out by a task of its own, a bounded number at
a time.

This module owns the socket, the clock and the timer. The session decides which frames may arrive, `flow_control` why
the socket is left unread, and the `dispatcher` how a frame is carried out.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from millrace.server.host.addresses import address_of
from millrace.server.host.clock import Clock
from millrace.server.host.metrics import Histogram
from millrace.server.host.proxy_protocol import ProxyHeader, ProxyHeaderError
from millrace.server.host.tokens import WRONG_TOKEN_DELAY_S, TokenGate, TokenVerdict
from millrace.wire import messages as m
from millrace.wire.append_run import AppendRun
from millrace.wire.errors import ErrorCode, ForeignProtocolError, WireError
from millrace.wire.framing import encode
from millrace.wire.limits import (
    APPENDS_IN_FLIGHT_MAX,
    CONSOLE_PORT,
    FRAME_SIZE_BYTES_MAX,
    SEQUENCED_APPEND_HEADER_SIZE_BYTES,
    UNREAD_PING_S,
)
from millrace.wire.server_session import ClientFrame, ServerSession
from millrace.wire.session import CLOSED, DRAINING, negotiate_version

from .connections import SHED_FRAME, Connections
from .counters import FrontCounters
from .dispatcher import Dispatcher
from .flow_control import FlowControl, Reason
from .handlers import Handlers
from .latency import Latency
from .options import FrontOptions
from .peer_log import PeerLog
from .proxy_entrance import ProxyEntrance
from .reader_memory import ReaderMemory
from .replies import error_reply
from .reply_writer import ReplyWriter
from .request_memory import RequestMemory

logger = logging.getLogger(__name__)

SERVER_NAME: Final = "millrace"
TOKEN_WRONG: Final = m.ErrorReply(code=ErrorCode.UNAUTHENTICATED, message="the token is not accepted")
TOKEN_MISSING: Final = m.ErrorReply(
    code=ErrorCode.UNAUTHENTICATED,
    message="the server requires a token, and none was sent: pass token=, --token-file, or MILLRACE_TOKEN_FILE",
)


class Connection(asyncio.BufferedProtocol):
    """The server's end of one connection; it is among the `connections` from its beginning to its end.

    Args:
        may_be_superseded: True if the lease may have expired, so another server may be the owner. Then any received
            byte ends the connection: an answer could be wrong, and the client has to look for the other server.
    """

    def __init__(
        self,
        *,
        handlers: Handlers,
        options: FrontOptions,
        clock: Clock,
        counters: FrontCounters,
        server_id: bytes,
        connections: Connections,
        memory: ReaderMemory,
        request_memory: RequestMemory,
        peer_log: PeerLog,
        tokens: TokenGate,
        seconds: Histogram,
        may_be_superseded: Callable[[], bool],
    ) -> None:
        self._container = handlers.container
        self._options = options
        self._clock = clock
        self._counters = counters
        self._server_id = server_id
        self._connections = connections
        self._peer_log = peer_log
        self._tokens = tokens
        self._may_be_superseded = may_be_superseded
        self._request_memory = request_memory
        requests = request_memory.account(self)
        self._session = ServerSession(
            now_s=clock.monotonic_s(),
            handshake_timeout_s=options.handshake_timeout_s,
            keepalive_s=options.keepalive_s,
            frame_timeout_s=options.frame_timeout_s,
            run_size_bytes_max=self._container.run_size_bytes_max,
            refusal=error_reply,
            allowance=requests,
        )
        self._latency = Latency(clock, seconds)
        self._reply_writer = ReplyWriter(
            self._session,
            clock=clock,
            counters=counters,
            account=memory.account(self),
            requests=requests,
            latency=self._latency,
            may_be_superseded=may_be_superseded,
            abort=self.abort,
        )
        self._flow = FlowControl(self._advance)
        self._dispatcher = Dispatcher(
            handlers,
            reply_writer=self._reply_writer,
            flow=self._flow,
            options=options,
            memory=memory,
            abort=self.abort,
            violated=self._protocol_error,
            progressed=self._end_if_drained,
        )
        # Address and port, for people; and the address alone.
        self._peer = ""
        self._address = ""
        # Of the client, in hexadecimal; empty before its HELLO.
        self._session_id = ""
        self._timer: asyncio.TimerHandle | None = None
        self._refusing: asyncio.TimerHandle | None = None
        self._is_reading = True
        self._is_advancing = False

    # --- life ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to wait for HELLO."""
        # Not an isinstance check: the transports of uvloop do not inherit from those of asyncio.
        self._reply_writer.transport = cast("asyncio.Transport", transport)
        peername = transport.get_extra_info("peername")
        self._peer, self._address = str(peername), address_of(peername)
        self._reply_writer.transport.set_write_buffer_limits(high=self._options.write_buffer_bytes_high)
        self._counters.connections_total += 1
        if not self._connections.arrived(self, self._address):
            self._counters.shed_total += 1
            self.shed()
            return
        self._arm_timer()
        if self._connections.proxies.trusts(peername):
            ProxyEntrance(
                self, self._reply_writer.transport, identified=self._identified, misidentified=self._misidentified
            )

    def _identified(self, header: ProxyHeader) -> None:
        """Count the connection for the host that uses the proxy, if the header names one."""
        if header.host:
            peername = (header.host, header.port)
            self._peer, self._address = str(peername), address_of(peername)
            if not self._connections.arrived(self, self._address):
                self._counters.shed_total += 1
                self.shed()

    def _misidentified(self, error: ProxyHeaderError) -> None:
        """Close the connection: a trusted proxy has sent an invalid header."""
        self._counters.protocol_errors_total += 1
        self._log("invalid PROXY header", str(error))
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything; appends in flight still become durable."""
        # The connection and its session refer to each other, so they stay until the garbage collector runs.
        self._session.lost()
        self._reply_writer.transport = None
        if self._timer is not None:
            self._timer.cancel()
        if self._refusing is not None:
            self._refusing.cancel()
        self._dispatcher.cancel()
        self._reply_writer.account.close()
        self._reply_writer.requests.close()
        self._connections.left(self)
        logger.debug("connection closed peer=%s session=%s error=%r", self._peer, self._session_id, exc)

    def drain(self) -> None:
        """Start nothing new; requests in progress continue. The connection then closes itself."""
        self._session.drain()
        self._dispatcher.reads.refuse()
        self._end_if_drained()

    def abort(self) -> None:
        """End at once."""
        self._session.close()
        if self._reply_writer.transport is not None:
            self._reply_writer.transport.abort()

    def unsent_bytes(self) -> int:
        """Return how many bytes were passed to the transport but not yet to the system."""
        transport = self._reply_writer.transport
        return transport.get_write_buffer_size() if transport is not None else 0

    def give_back(self) -> None:
        """Release unused memory of requests."""
        self._session.give_back()

    def request_room_found(self) -> None:
        """Retry taking the memory that the next request needs."""
        self._session.is_short = False
        self._flow.set(Reason.REQUEST_MEMORY, False)

    def shed(self) -> None:
        """Report that there are too many connections, and close."""
        if self._reply_writer.transport is not None:
            self._reply_writer.transport.write(SHED_FRAME)
        self._end()

    def _end(self) -> None:
        """Close after the written bytes."""
        self._session.close()
        if self._reply_writer.transport is not None:
            self._reply_writer.transport.close()

    def _end_if_drained(self) -> None:
        state = self._session.state
        if state is CLOSED or (state is DRAINING and self._dispatcher.is_idle):
            self._end()

    def _arm_timer(self) -> None:
        delay_s = self._session.next_deadline_s() - self._clock.monotonic_s()
        delay_s = max(0.01, min(delay_s, self._options.frame_timeout_s))
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._deadline)

    def _hurry_timer(self) -> None:
        """See to it that the timer is early enough for a session that pauses; that is seldom needed."""
        if self._timer is not None and self._timer.when() > asyncio.get_running_loop().time() + UNREAD_PING_S:
            self._timer.cancel()
            self._arm_timer()

    def _deadline(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._session.is_closed:
            # Closed long ago, and the peer still has not received everything.
            self.abort()
            return
        if not self._is_reading and not self._reply_writer.is_full:
            # This end does not read: the lack of bytes means nothing about the peer.
            self._session.excuse(now_s)
        self._session.on_deadline(now_s)
        if self._session.is_closed:
            self._log("connection timed out", level=logging.INFO)
            self.abort()
            return
        self._reply_writer.flush()
        self._arm_timer()

    # --- bytes ---

    def get_buffer(self, sizehint: int) -> memoryview:
        """Lend memory to the socket."""
        return self._session.writable()

    def buffer_updated(self, nbytes: int) -> None:
        """Process received bytes."""
        self._counters.received_bytes_total += nbytes
        if self._connections.heard_last is not self:
            self._connections.heard_last = self
            self._container.log.share_loop()
        now_s = self._latency.received_s = self._clock.monotonic_s()
        self._session.received(nbytes, now_s)
        self._advance()

    def eof_received(self) -> bool:
        """Close when the peer does."""
        return False

    def pause_writing(self) -> None:
        """The peer receives too slowly: read nothing more from it."""
        self._reply_writer.is_full = True
        self._flow.set(Reason.REPLIES_UNSENT, True)

    def resume_writing(self) -> None:
        """The peer has received what was sent."""
        self._reply_writer.is_full = False
        self._dispatcher.reads.write_resumed()
        self._flow.set(Reason.REPLIES_UNSENT, self._reply_writer.is_full)

    def _advance(self) -> None:
        """Process the received whole frames; read the socket if and only if no reason blocks it then.

        Only this method does either. Processing a frame may change the reasons, and so call this again: such a nested
        call returns at once, because the running walk checks before each frame.
        """
        if self._is_advancing or self._reply_writer.transport is None or self._session.is_closed:
            return
        if self._may_be_superseded():
            self._log("connection ended, another server may have taken over", level=logging.INFO)
            self.abort()
            return
        self._is_advancing = True
        try:
            # Check before each frame: the previous one may have filled the container, or wait to be loaded, and a later
            # frame may not overtake it.
            while not self._flow.is_blocked:
                event = self._session.next_event()
                if isinstance(event, AppendRun):
                    self._dispatcher.take_appends(event)
                elif event is not None:
                    self._take(event)
                elif not self._session.is_short or not self._session.give_back():
                    # Out of frames; or out of memory for the next one, even after this connection's own unused memory.
                    break
            if self._session.is_short:
                # Queue for memory while holding none that others need, or two connections could wait for each other.
                self._reply_writer.requests.wait()
                self._flow.set(Reason.REQUEST_MEMORY, True)
            elif self._request_memory.is_contended:
                # Others wait: release spare buffer space instead of keeping it for the next large frame.
                self._session.give_back()
            if self._session.appends.has_outcomes:
                # Rejected appends and duplicates need no log.
                self._dispatcher.settle()
        except WireError as error:
            self._protocol_error(error)
        finally:
            self._is_advancing = False
        self._switch_reading()

    def _switch_reading(self) -> None:
        transport = self._reply_writer.transport
        if transport is None or self._is_reading != self._flow.is_blocked:
            return
        self._is_reading = not self._flow.is_blocked
        if self._is_reading:
            self._session.resume(self._clock.monotonic_s())
            transport.resume_reading()
        else:
            self._session.pause(for_peer=self._flow.is_only(Reason.REPLIES_UNSENT))
            self._hurry_timer()
            transport.pause_reading()

    # --- frames ---

    def _take(self, received: ClientFrame) -> None:
        self._counters.frames_total += 1
        if isinstance(received.message, m.Hello):
            self._greet(received.message, received.request_id)
        else:
            self._dispatcher.take(received)

    def _greet(self, message: m.Hello, request_id: int) -> None:
        verdict = self._tokens.judge(message.token.encode())
        if verdict is not TokenVerdict.RIGHT:
            self._log("authentication failed")
            self._refuse_token(request_id, is_slow=verdict is TokenVerdict.WRONG)
            return
        if not self._connections.greeted(self, self._address):
            self._counters.shed_total += 1
            self.shed()
            return
        self._session_id = message.session_id.hex()
        self._dispatcher.greeted(message.session_id, self._address)
        logger.debug("client greeted peer=%s session=%s client=%s", self._peer, self._session_id, message.client)
        reply = m.HelloReply(
            version=negotiate_version(version_min=message.version_min, version_max=message.version_max),
            features=0,
            frame_size_max=FRAME_SIZE_BYTES_MAX,
            append_size_max=self._container.run_size_bytes_max - SEQUENCED_APPEND_HEADER_SIZE_BYTES,
            appends_in_flight_max=APPENDS_IN_FLIGHT_MAX,
            server_id=self._server_id,
            server=SERVER_NAME,
        )
        self._reply_writer.send(encode(reply, request_id=request_id))

    def _refuse_token(self, request_id: int, *, is_slow: bool) -> None:
        """Read nothing more, send a rejection, at once or after a delay, and close."""
        self._flow.set(Reason.TOKEN_REFUSED, True)
        if is_slow:
            self._refusing = asyncio.get_running_loop().call_later(
                WRONG_TOKEN_DELAY_S, self._send_refusal, request_id, TOKEN_WRONG
            )
            self._connections.refused(self)
        else:
            self._send_refusal(request_id, TOKEN_MISSING)

    def _send_refusal(self, request_id: int, reply: m.ErrorReply) -> None:
        if not self._session.is_closed:
            self._reply_writer.send(encode(reply, request_id=request_id))
            self._end()

    def _protocol_error(self, error: WireError) -> None:
        """Report a protocol violation to the peer once, and close."""
        self._counters.protocol_errors_total += 1
        if isinstance(error, ForeignProtocolError):
            self._counters.foreign_protocol_total += 1
            self._log(
                f"{error.protocol} spoken to the data port",
                f"clients speak Millrace's protocol here, without TLS; the web console listens on its own port (by "
                f"default {CONSOLE_PORT})",
            )
            self.abort()
            return
        self._log("protocol error" if self._session_id else "garbage before the handshake", str(error))
        self._reply_writer.send(encode(error_reply(error)))
        self._end()

    def _log(self, kind: str, detail: str = "", *, level: int = logging.WARNING) -> None:
        self._peer_log.log(kind, peer=self._peer, address=self._address, detail=detail, level=level)
