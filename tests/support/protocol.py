"""One raw connection to a server: any frame or garbage out, frames in, each wait with a time limit.

This is not the client of the product. It reconnects never, resends nothing and checks only what arrives.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.framing import FrameHeader, decode, encode, encode_append_header
from millrace.wire.limits import FRAME_SIZE_BYTES_MAX
from millrace.wire.session import Role, Session

TIMEOUT_S = 120.0

M = TypeVar("M", bound=m.Message)


class RefusedError(Exception):
    """The server answered with an ERROR."""

    def __init__(self, reply: m.ErrorReply) -> None:
        super().__init__(f"{ErrorCode(reply.code).name}: {reply.subject} {reply.message}")
        self.reply = reply
        self.code = ErrorCode(reply.code)


class Stored(NamedTuple):
    """An append that was acknowledged."""

    offset: int
    duplicate: bool


Outcome = Stored | ErrorCode

PIPELINE_ERRORS = frozenset(ErrorCode) - {ErrorCode.OUTCOME_UNKNOWN, ErrorCode.SHUTTING_DOWN}
"""Errors of an append after which the connection lives."""


def hello(*, token: str = "", version: int = 1, session_id: bytes = bytes(range(16))) -> bytes:
    """Return the first frame of a client."""
    message = m.Hello(
        version_min=version,
        version_max=version,
        features=0,
        frame_size_max=FRAME_SIZE_BYTES_MAX,
        session_id=session_id,
        client="test",
        token=token,
    )
    return encode(message, request_id=0)


def append_frame(segment_id: int, payload: bytes, *, request_id: int, **fields: Any) -> bytes:
    """Return an append; `fields` are those of `encode_append_header`."""
    return encode_append_header(request_id=request_id, segment_id=segment_id, payload=payload, **fields) + payload


class PeerSession(Session):
    """A client's end that sees every frame as it is, and keeps no account: it may send what no client would."""

    def __init__(self) -> None:
        super().__init__(Role.CLIENT, now_s=0.0, handshake_timeout_s=math.inf, keepalive_s=math.inf)

    def next_message(self) -> tuple[FrameHeader, m.Message] | None:
        """Return the next frame, verified; a PING is not answered."""
        end = self._frames.frame_end()
        if not end:
            return None
        decoded = decode(bytes(self._first_frame(end)))
        self._consume(end)
        return decoded


class Peer(ABC):
    """Who sends frames to a container, and what it has got for them, whatever lies between.

    PINGs are answered while something is being received, unless `answers_pings` is cleared.
    """

    def __init__(self) -> None:
        self._request_id = 0
        self.answers_pings = True
        self.pings: list[int] = []
        self.throttles: list[m.Throttle] = []
        self.outcomes: dict[int, Outcome] = {}
        self.errors: dict[int, m.ErrorReply] = {}
        self._sizes: dict[int, int] = {}
        self.replies: dict[int, m.Message] = {}

    @staticmethod
    async def connect(
        address: str, *, greet: bool = True, read_ahead: int = 1 << 26, source: str = "", **fields: Any
    ) -> "SocketPeer":
        """Connect, from an address of this host, and, if `greet`, shake hands; `fields` are those of `hello`."""
        host, _, port = address.rpartition(":")
        local = (source, 0) if source else None
        peer = SocketPeer(*await asyncio.open_connection(host, int(port), limit=read_ahead, local_addr=local))
        if greet:
            try:
                await peer.send(hello(**fields))
                _, reply = await peer.receive()
                if isinstance(reply, m.ErrorReply):
                    raise RefusedError(reply)
            except BaseException:
                await peer.close()
                raise
            assert isinstance(reply, m.HelloReply), reply
        return peer

    @abstractmethod
    async def send(self, *data: bytes) -> None:
        """Send frames; wait only for room on the way."""

    @abstractmethod
    def answer_ping(self, request_id: int) -> None:
        """Send a PONG, at once."""

    @abstractmethod
    async def next_message(self) -> tuple[FrameHeader, m.Message]:
        """Return the next frame.

        Raises:
            EOFError, OSError: the connection was closed.
        """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None:
        """Disconnect; whatever was under way is of no interest."""

    def next_id(self, count: int = 1) -> int:
        """Take that many request ids and return the first."""
        first = self._request_id + 1
        self._request_id += count
        return first

    async def receive(self, timeout_s: float = TIMEOUT_S) -> tuple[FrameHeader, m.Message]:
        """Return the next frame that is neither a PING nor a THROTTLE.

        Raises:
            TimeoutError: none came.
            EOFError, OSError: the server closed the connection.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                header, message = await self.next_message()
                if isinstance(message, m.Ping):
                    self.pings.append(header.request_id)
                    if self.answers_pings:
                        self.answer_ping(header.request_id)
                elif isinstance(message, m.Throttle):
                    self.throttles.append(message)
                else:
                    if isinstance(message, m.AppendAck):
                        self._acknowledge(message)
                    return header, message

    async def ask(self, message: m.Message, kind: type[M]) -> M:
        """Send a request and return its reply; what else arrives meanwhile is kept.

        Raises:
            RefusedError: the reply is an ERROR.
        """
        return await self.reply(await self.start(message), kind)

    async def start(self, message: m.Message) -> int:
        """Send a request and return its id."""
        request_id = self.next_id()
        await self.send(encode(message, request_id=request_id))
        return request_id

    async def reply(self, request_id: int, kind: type[M]) -> M:
        """Return the reply to a request; those to others are kept until they are asked for."""
        while request_id not in self.replies:
            await self.keep_next()
        reply = self.replies.pop(request_id)
        if isinstance(reply, m.ErrorReply):
            raise RefusedError(reply)
        assert isinstance(reply, kind), reply
        return reply

    async def keep_next(self) -> None:
        """Receive one frame and keep it as a reply or as the outcome of an append."""
        header, reply = await self.receive()
        if isinstance(reply, m.AppendAck) or header.request_id in self._sizes:
            self.note(header, reply)
        else:
            self.replies[header.request_id] = reply

    async def append(self, segment_id: int, *payloads: bytes, event_number: int = 0, **fields: Any) -> list[int]:
        """Send appends of one event each, numbered from `event_number` on; return their request ids."""
        request_ids, frames = self.packed(segment_id, *payloads, event_number=event_number, **fields)
        await self.send(frames)
        return request_ids

    def packed(
        self, segment_id: int, *payloads: bytes, event_number: int = 0, **fields: Any
    ) -> tuple[list[int], bytes]:
        """Return the request ids and the frames of appends, which the caller sends."""
        first = self.next_id(len(payloads))
        self._sizes |= {first + index: len(payload) for index, payload in enumerate(payloads)}
        frames = [
            append_frame(
                segment_id,
                payload,
                request_id=first + index,
                event_number=event_number + index if event_number else 0,
                **fields,
            )
            for index, payload in enumerate(payloads)
        ]
        return list(range(first, first + len(payloads))), b"".join(frames)

    async def settled(self, request_ids: Sequence[int]) -> list[Outcome]:
        """Return the outcomes of appends, in the order asked for.

        If one failed, its segment can be appended to again when this returns: the PING after the error is answered.
        """
        while not all(request_id in self.outcomes for request_id in request_ids):
            self.note(*await self.receive())
        outcomes = [self.outcomes[request_id] for request_id in request_ids]
        if self.answers_pings and any(outcome in PIPELINE_ERRORS for outcome in outcomes):
            await self.send(encode(m.Ping(), request_id=0))
            while not isinstance((received := await self.receive())[1], m.Pong):
                self.note(*received)
        return outcomes

    async def store(self, segment_id: int, *payloads: bytes, **fields: Any) -> list[int]:
        """Append and return the offsets; every append must be acknowledged, and not as a duplicate."""
        outcomes = await self.settled(await self.append(segment_id, *payloads, **fields))
        for outcome in outcomes:
            assert isinstance(outcome, Stored), outcome
            assert not outcome.duplicate
        return [outcome.offset for outcome in outcomes if isinstance(outcome, Stored)]

    # Requests that most tests need

    async def create_segment(self, name: str) -> int:
        """Create a segment and return its id."""
        return (await self.ask(m.CreateSegment(name), m.SegmentInfo)).segment_id

    async def info(self, segment_id: int) -> m.SegmentInfo:
        """Return what is known of a segment."""
        return await self.ask(m.GetSegment(segment_id, ""), m.SegmentInfo)

    async def open_writer(self, writer_id: str, *segment_ids: int, start_over: bool = False) -> m.WriterOpened:
        """Open a writer."""
        return await self.ask(m.OpenWriter(writer_id, list(segment_ids), int(start_over)), m.WriterOpened)

    async def read(self, segment_id: int, offset: int, *, size_max: int = 1 << 20, wait_ms: int = 0) -> m.Data:
        """Read once."""
        return await self.ask(read_request(segment_id, offset, size_max=size_max, wait_ms=wait_ms), m.Data)

    async def read_all(self, segment_id: int, *, start: int = 0, size_max: int = 1 << 20) -> bytes:
        """Read from `start` to the tail."""
        pieces: list[bytes] = []
        while True:
            data = await self.read(segment_id, start, size_max=size_max)
            pieces.append(bytes(data.payload))
            start += len(data.payload)
            if start >= data.length:
                return b"".join(pieces)
            assert data.payload, "an empty reply below the tail"

    def _acknowledge(self, ack: m.AppendAck) -> None:
        for entry in ack.entries:
            offset = entry.offset
            for index in range(entry.count):
                request_id = entry.request_id + index
                assert request_id not in self.outcomes, f"two outcomes for {request_id}"
                self.outcomes[request_id] = Stored(offset, bool(entry.duplicate))
                # Only the offset of the first one is told; the others follow, and their sizes are the sender's to know.
                offset = offset + self._sizes.get(request_id, 0) if offset >= 0 else -1

    def note(self, header: FrameHeader, message: m.Message) -> None:
        """Record the outcome of an append."""
        if isinstance(message, m.ErrorReply) and header.request_id:
            assert header.request_id not in self.outcomes, f"two outcomes for {header.request_id}"
            self.outcomes[header.request_id] = ErrorCode(message.code)
            self.errors[header.request_id] = message


class SocketPeer(Peer):
    """A connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        self._reader = reader
        self._writer = writer
        self._session = PeerSession()

    async def close(self) -> None:
        """Cut the connection; whatever was under way is of no interest."""
        self.cut()
        try:
            await self._writer.wait_closed()
        except OSError:
            pass

    async def send(self, *data: bytes) -> None:
        """Send bytes as they are; wait only for room in the socket."""
        self._writer.writelines(data)
        await asyncio.wait_for(self._writer.drain(), TIMEOUT_S)

    def push(self, *data: bytes) -> None:
        """Send bytes as they are, without waiting for anything."""
        self._writer.writelines(data)

    def cut(self) -> None:
        """Cut the connection, in this very turn."""
        self._writer.transport.abort()

    def answer_ping(self, request_id: int) -> None:
        """Send a PONG, at once."""
        self.push(encode(m.Pong(), request_id=request_id))

    async def next_message(self) -> tuple[FrameHeader, m.Message]:
        """Return the next frame, verified."""
        while (received := self._session.next_message()) is None:
            room = self._session.writable()
            data = await self._reader.read(len(room))
            if not data:
                raise EOFError
            room[: len(data)] = data
            self._session.received(len(data), 0.0)
        return received

    async def ended(self, timeout_s: float = TIMEOUT_S) -> list[m.Message]:
        """Return what still arrives until the server closes the connection."""
        messages = []
        try:
            while True:
                messages.append((await self.receive(timeout_s))[1])
        except (EOFError, ConnectionError):
            return messages


def read_request(segment_id: int, offset: int, *, size_max: int = 1 << 20, wait_ms: int = 0) -> m.Read:
    """Return a READ."""
    return m.Read(segment_id=segment_id, offset=offset, size_max=size_max, wait_ms=wait_ms)


def set_attribute(segment_id: int, key: str, *, expected: bytes | None, value: bytes | None) -> m.SetAttribute:
    """Return a SET_ATTRIBUTE; None means absent."""
    return m.SetAttribute(
        segment_id=segment_id,
        expected_present=int(expected is not None),
        present=int(value is not None),
        key=key,
        expected=expected or b"",
        value=value or b"",
    )


async def code_of(awaitable: Any) -> ErrorCode:
    """Return the code with which a request is refused; it must be."""
    try:
        result = await awaitable
    except RefusedError as error:
        return error.code
    raise AssertionError(f"not refused: {result}")
