"""One connection: bytes in, frames to the container, replies out.

The hot path has no coroutine. `buffer_updated` walks the frames that have arrived; appends go to the container as runs,
reads are answered from memory in the same step, everything else is carried out by a task of its own, a bounded number
at a time.

Pressure has one answer: the socket is not read any more. It is left unread while its peer does not take what was sent
to it, while too many of its appends or requests are under way, and while the container has no room; in the last case
the peer is told once, by a THROTTLE notice that says what is full.
"""

import asyncio
import hmac
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from millrace.server.container.admission import PendingAppend
from millrace.server.container.container import RETRY_AFTER_MS
from millrace.server.container.state.segment import Segment
from millrace.server.errors import InvalidArgumentError, ServerError, ShuttingDownError, ThrottledError
from millrace.server.host.clock import Clock
from millrace.wire import frames as f
from millrace.wire.checksum import crc32c
from millrace.wire.decoder import AppendRun, FrameBuffer, checked_control, scan_run
from millrace.wire.errors import ChecksumError, ErrorCode, ForeignProtocolError, ProtocolError, WireError
from millrace.wire.framing import decode, encode, encode_data
from millrace.wire.limits import (
    APPEND_HEADER_SIZE_BYTES,
    APPENDS_IN_FLIGHT_MAX,
    CONSOLE_PORT,
    FRAME_SIZE_BYTES_MAX,
    READ_SIZE_BYTES_MAX,
    READ_WAIT_S_MAX,
)
from millrace.wire.session import Role, Session, SessionAction, SessionState, negotiate_version

from .append_pipeline import AppendPipeline
from .options import FrontOptions
from .reads import ParkedRead, Subscription
from .replies import error_reply
from .router import Handlers

logger = logging.getLogger(__name__)

_APPEND: Final = int(f.FrameType.APPEND)
SERVER_NAME: Final = "millrace"
FETCHING_BYTES_MAX: Final = 4 * READ_SIZE_BYTES_MAX
"""A peer that asks for much and takes little is lent no more than about this, beside what its socket holds."""


@dataclass(slots=True)
class FrontCounters:
    """Counters over all connections since the start."""

    connections_total: int = 0
    shed_total: int = 0
    protocol_errors_total: int = 0
    foreign_protocol_total: int = 0
    frames_total: int = 0
    appends_total: int = 0
    received_bytes_total: int = 0
    sent_data_bytes_total: int = 0
    throttled_total: int = 0
    requests_failed_total: int = 0


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
        self._handlers = handlers
        self._container = handlers.container
        self._options = options
        self._clock = clock
        self._counters = counters
        self._server_id = server_id
        self._closed = closed
        self._buffer = FrameBuffer(frame_size_max=FRAME_SIZE_BYTES_MAX)
        self._pipeline = AppendPipeline()
        self._session = Session(
            Role.SERVER,
            now_s=clock.monotonic_s(),
            handshake_timeout_s=options.handshake_timeout_s,
            keepalive_s=options.keepalive_s,
        )
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._readers: dict[int, ParkedRead | Subscription] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._frame_began_s = 0.0
        # What reads that wait for tier 2 may bring at most.
        self._fetching_bytes = 0
        self._reading = True
        self._throttled = False
        # Whether what the next append names is being read from the checkpoint; and what was brought for it.
        self._bringing = False
        self._brought: list[object] = []
        self.write_paused = False

    # --- life ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to wait for HELLO."""
        # Not an isinstance check: the transports of uvloop do not inherit from those of asyncio.
        self._transport = cast("asyncio.Transport", transport)
        self._peer = str(transport.get_extra_info("peername"))
        self._transport.set_write_buffer_limits(high=self._options.write_buffer_bytes_high)
        self._counters.connections_total += 1
        self._arm_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything; appends on their way still become durable."""
        self._session.close()
        self._transport = None
        self._container.forget_relief(self._relieved)
        if self._timer is not None:
            self._timer.cancel()
        for reader in list(self._readers.values()):
            reader.cancel()
        self._readers.clear()
        for task in self._tasks:
            task.cancel()
        self._closed(self)
        logger.debug("connection closed peer=%s error=%r", self._peer, exc)

    def drain(self) -> None:
        """Start nothing new; what is under way goes on. The connection ends itself when nothing is."""
        self._session.drain()
        for request_id, reader in list(self._readers.items()):
            reader.cancel()
            self.send_error(request_id, ShuttingDownError("the server is shutting down", retry_after_ms=1000))
        self._readers.clear()
        self._end_if_drained()

    def abort(self) -> None:
        """End at once."""
        self._session.close()
        if self._transport is not None:
            self._transport.abort()

    def _end(self) -> None:
        """Close after what was written."""
        self._session.close()
        if self._transport is not None:
            self._transport.close()

    def _end_if_drained(self) -> None:
        if self._session.state is SessionState.CLOSED or (
            self._session.state is SessionState.DRAINING and not self._tasks and not self._pipeline.count
        ):
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
        if not self._reading and not self.write_paused:
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
            self._send(encode(f.Ping()))
        self._arm_timer()

    # --- bytes in ---

    def get_buffer(self, sizehint: int) -> memoryview:
        """Lend the free end of the receive buffer to the socket."""
        return self._buffer.writable()

    def buffer_updated(self, nbytes: int) -> None:
        """Take what has arrived."""
        self._counters.received_bytes_total += nbytes
        self._buffer.received(nbytes)
        now_s = self._clock.monotonic_s()
        self._session.received(now_s)
        self._process()
        # A frame has until its time-out from when its first byte came, however its bytes trickle.
        if not self._buffer.pending or not self._reading:
            self._frame_began_s = 0.0
        elif not self._frame_began_s:
            self._frame_began_s = now_s

    def eof_received(self) -> bool:
        """Close when the peer does."""
        return False

    def pause_writing(self) -> None:
        """The peer takes too little: read nothing more from it."""
        self.write_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        """The peer took what was sent."""
        self.write_paused = False
        for reader in list(self._readers.values()):
            reader.write_resumed()
        self._update_reading()

    @property
    def _blocked(self) -> bool:
        return (
            self.write_paused
            or self._throttled
            or self._bringing
            or self._pipeline.count >= APPENDS_IN_FLIGHT_MAX
            or len(self._tasks) >= self._options.tasks_count_max
            or self._fetching_bytes >= FETCHING_BYTES_MAX
        )

    def _update_reading(self) -> None:
        """Read the socket if and only if nothing is in the way, and process what had been left in the buffer."""
        if self._transport is None or self._session.state is SessionState.CLOSED:
            return
        if self._blocked:
            if self._reading:
                self._reading = False
                self._transport.pause_reading()
        elif not self._reading:
            self._reading = True
            self._transport.resume_reading()
            self._process()

    def _relieved(self) -> None:
        self._throttled = False
        self._update_reading()

    def _process(self) -> None:
        """Walk the whole frames in the buffer."""
        buffer = self._buffer
        try:
            while not self._blocked and self._session.state is not SessionState.CLOSED:
                end = buffer.frame_end()
                if not end:
                    break
                start = buffer.start
                if buffer.data[start + 8] == _APPEND:
                    self._take_appends(start, end)
                else:
                    self._take_frame(start, end)
        except WireError as error:
            self._protocol_error(error)
            return
        frames = self._pipeline.settle()
        if frames:
            self._send_all(frames)
        if self._reading and self._blocked:
            self._update_reading()

    def _take_appends(self, start: int, end: int) -> None:
        buffer = self._buffer
        view = buffer.view(0, buffer.end)
        # A single append may be larger than the log takes; the container says so. A run of several never is.
        limit = min(buffer.end, max(end, start + self._container.run_size_bytes_max))
        run = scan_run(buffer.data, view, start=start, end=limit)
        assert run is not None, "a whole append stands here"
        if self._session.state is SessionState.ACTIVE and not (self._brought or self._is_at_hand(run)):
            self._bringing = True
            _ = self.start_task(self._bring(run), name="bring")
            return
        self._session.on_frame(_APPEND)
        self._session.check_request_id(_APPEND, run.request_id, count=run.frame_count)
        frames = bytes(view[start : run.end])
        buffer.consume(run.end)
        # Held until the container has admitted the run, and holds what it is about.
        _held, self._brought = self._brought, []
        self._frame_began_s = 0.0
        self._counters.appends_total += run.frame_count
        try:
            self._append(run, frames)
        except ServerError as error:
            self._counters.requests_failed_total += run.frame_count
            refused = PendingAppend(
                self,
                None,
                segment_id=run.segment_id,
                request_id=run.request_id,
                count=run.frame_count,
                writer_number=run.writer_number,
            )
            self._pipeline.refuse(refused, error)
        pressure = self._container.pressure
        if pressure:
            self._throttled = True
            self._counters.throttled_total += 1
            self._container.when_relieved(self._relieved)
            self._send(encode(f.Throttle(RETRY_AFTER_MS, pressure)))

    def _is_at_hand(self, run: AppendRun) -> bool:
        """Return whether the segment and the writer of a run are in memory."""
        bringer = self._container.bringer
        return bringer.has_segment(run.segment_id) and (not run.writer_number or bringer.has_writer(run.writer_number))

    async def _bring(self, run: AppendRun) -> None:
        """Bring what a run names, and go on with it: nothing that follows may overtake it."""
        try:
            self._brought = await self._container.bringer.bring(
                segments=[run.segment_id], writers=[run.writer_number] if run.writer_number else []
            )
            # There may be nothing of what was named; the container says so.
            self._brought.append(run)
        except ServerError:
            # The checkpoint cannot be read: the container is about to be opened anew.
            self.abort()
        finally:
            self._bringing = False

    def _append(self, run: AppendRun, frames: bytes) -> None:
        if self._session.state is not SessionState.ACTIVE:
            raise ShuttingDownError("the server is shutting down", retry_after_ms=1000)
        self._pipeline.check(run.segment_id, run.writer_number)
        self._pipeline.add(self._container.append(run, frames, self))

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
        if isinstance(message, f.Read | f.Subscribe) and not self._container.bringer.has_segment(message.segment_id):
            # What follows, a CREDIT for example, must find the subscription.
            self._bringing = True
            _ = self.start_task(self._read_later(message, header.request_id), name=f"request {message.type.name}")
        elif isinstance(message, f.Read):
            self._read(message, header.request_id)
        else:
            self._dispatch(message, header.request_id)

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
        self._send(encode(error_reply(error)))
        self._end()

    # --- requests ---

    def _dispatch(self, message: f.Message, request_id: int) -> None:
        if isinstance(message, f.Ping):
            self._send(encode(f.Pong(), request_id=request_id))
        elif isinstance(message, f.Pong):
            self._pipeline.pong(request_id)
        elif isinstance(message, f.Hello):
            self._greet(message, request_id)
        elif isinstance(message, f.Subscribe):
            self._subscribe(message, request_id)
        elif isinstance(message, f.Credit):
            reader = self._readers.get(request_id)
            if isinstance(reader, Subscription):
                reader.give_credit(message.credit_bytes)
        elif isinstance(message, f.Unsubscribe):
            reader = self._readers.pop(request_id, None)
            if reader is not None:
                reader.cancel()
        elif self._session.state is SessionState.DRAINING:
            self.send_error(request_id, ShuttingDownError("the server is shutting down", retry_after_ms=1000))
        else:
            _ = self.start_task(self._handle(message, request_id), name=f"request {message.type.name}")

    def _greet(self, message: f.Hello, request_id: int) -> None:
        version = negotiate_version(version_min=message.version_min, version_max=message.version_max)
        if self._options.token and not hmac.compare_digest(self._options.token.encode(), message.token.encode()):
            logger.warning("authentication failed peer=%s", self._peer)
            reply = error_reply(InvalidArgumentError("the token is not accepted"))
            self._send(encode(_with_code(reply, ErrorCode.UNAUTHENTICATED), request_id=request_id))
            self._end()
            return
        self._send(
            encode(
                f.HelloReply(
                    version=version,
                    features=0,
                    frame_size_max=FRAME_SIZE_BYTES_MAX,
                    append_size_max=self._container.run_size_bytes_max - APPEND_HEADER_SIZE_BYTES,
                    appends_in_flight_max=APPENDS_IN_FLIGHT_MAX,
                    server_id=self._server_id,
                    server=SERVER_NAME,
                ),
                request_id=request_id,
            )
        )

    async def _handle(self, message: f.Message, request_id: int) -> None:
        try:
            frame = encode(await self._handlers.handle(message), request_id=request_id)
        except Exception as error:  # noqa: BLE001  # whatever a request meets becomes its reply, in this one place
            self.send_error(request_id, error)
        else:
            self._send(frame)

    def start_task(self, coroutine: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run a coroutine for as long as the connection lives."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("task of a connection failed peer=%s task=%s", self._peer, task.get_name(), exc_info=error)
            self.abort()
        if self._session.state is SessionState.DRAINING:
            self._end_if_drained()
        self._update_reading()

    # --- reads ---

    def _read(self, message: f.Read, request_id: int) -> None:
        try:
            segment = self._container.segment(message.segment_id)
            size_max = min(message.size_max, READ_SIZE_BYTES_MAX)
            if size_max < 1:
                raise InvalidArgumentError("a read asks for at least one byte", subject=segment.name)
            pieces = self._container.read_now(segment, message.offset, size_max)
            if pieces is None:
                self._fetching_bytes += size_max
                task = self.start_task(self._read_cold(segment, message.offset, size_max, request_id), name="read")
                task.add_done_callback(lambda _: self._fetched(size_max))
            elif pieces or segment.sealed or not message.wait_ms or self._session.state is not SessionState.ACTIVE:
                self.send_data(request_id, segment, message.offset, pieces)
            else:
                self._check_parked()
                self._readers[request_id] = ParkedRead(
                    self,
                    self._container,
                    segment,
                    request_id=request_id,
                    offset=message.offset,
                    size_max=size_max,
                    wait_s=min(message.wait_ms / 1000, READ_WAIT_S_MAX),
                )
        except ServerError as error:
            self.send_error(request_id, error)

    async def _read_later(self, message: f.Read | f.Subscribe, request_id: int) -> None:
        """Read from a segment that has to be brought first."""
        try:
            _held = await self._handlers.bring(message)
        except ServerError as error:
            self.send_error(request_id, error)
            return
        finally:
            self._bringing = False
        if isinstance(message, f.Read):
            self._read(message, request_id)
        else:
            self._subscribe(message, request_id)

    def _fetched(self, size_max: int) -> None:
        self._fetching_bytes -= size_max
        self._update_reading()

    async def _read_cold(self, segment: Segment, offset: int, size_max: int, request_id: int) -> None:
        try:
            pieces = await self._container.read(segment, offset, size_max)
        except ServerError as error:
            self.send_error(request_id, error)
        else:
            self.send_data(request_id, segment, offset, pieces)

    def _subscribe(self, message: f.Subscribe, request_id: int) -> None:
        try:
            segment = self._container.segment(message.segment_id)
            segment.check_readable(message.offset)
            if self._session.state is not SessionState.ACTIVE:
                raise ShuttingDownError("the server is shutting down", retry_after_ms=1000)
            self._check_parked()
        except ServerError as error:
            self.send_error(request_id, error)
            return
        subscription = Subscription(
            self,
            self._container,
            segment,
            request_id=request_id,
            offset=message.offset,
            credit_bytes=message.credit_bytes,
        )
        self._readers[request_id] = subscription
        subscription.pump()

    def _check_parked(self) -> None:
        if len(self._readers) >= self._options.parked_reads_count_max:
            raise ThrottledError(
                f"{len(self._readers)} reads of this connection wait at the tail", retry_after_ms=RETRY_AFTER_MS
            )

    def reader_done(self, request_id: int) -> None:
        """Forget a reader that has ended."""
        self._readers.pop(request_id, None)

    # --- bytes out ---

    def settle(self) -> None:
        """Send the outcomes that are known: called by the container once for each log batch."""
        frames = self._pipeline.settle()
        if frames:
            self._send_all(frames)
        if not self._reading:
            self._update_reading()
        if self._session.state is SessionState.DRAINING:
            self._end_if_drained()

    def send_data(self, request_id: int, segment: Segment, offset: int, pieces: list[memoryview]) -> int:
        """Send a DATA frame without copying its payload; return its flags."""
        size = sum(map(len, pieces))
        flags = 0
        if offset + size == segment.length:
            flags = f.DataFlag.AT_TAIL | (f.DataFlag.END_OF_SEGMENT if segment.sealed else 0)
        self._counters.sent_data_bytes_total += size
        self._send_all(
            encode_data(
                request_id=request_id,
                segment_id=segment.segment_id,
                offset=offset,
                length=segment.length,
                flags=flags,
                pieces=pieces,
            )
        )
        return flags

    def send_error(self, request_id: int, error: BaseException) -> None:
        """Send an ERROR frame."""
        self._counters.requests_failed_total += 1
        self._send(encode(error_reply(error), request_id=request_id))

    def _send(self, frame: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._session.sent(self._clock.monotonic_s())
            self._transport.write(frame)

    def _send_all(self, frames: Sequence[bytes | memoryview]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._session.sent(self._clock.monotonic_s())
            self._transport.writelines(frames)


def _with_code(reply: f.ErrorReply, code: ErrorCode) -> f.ErrorReply:
    return f.ErrorReply(
        code=int(code),
        retriable=0,
        retry_after_ms=0,
        start_offset=-1,
        length=-1,
        subject="",
        message=reply.message,
        successors=[],
    )
