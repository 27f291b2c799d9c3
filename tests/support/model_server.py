"""A server of one stream in memory, over a transport without a socket: a test decides when it answers, and what.

The product's `Connection` talks to it in frames. Requests are answered in the next turn of the loop; appends wait in
`arrived` until the test lets the server answer, refuse, or lose them.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from millrace.client.errors import ServerUnreachableError
from millrace.client.options import ClientOptions
from millrace.client.transport.channel import Channel
from millrace.client.transport.client_guard import ClientGuard
from millrace.client.transport.connection import Connection
from millrace.model.address import Address, Addresses
from millrace.model.event_block import unpack_block
from millrace.model.key_range import KeyRange, equal_ranges
from millrace.model.limits import APPEND_SIZE_BYTES_MAX
from millrace.model.sequence_row import SequenceRow
from millrace.wire import messages as m
from millrace.wire.append_run import Sequences
from millrace.wire.errors import ErrorCode
from millrace.wire.framing import APPEND_HEADER, SEQUENCES, decode, decode_header, encode
from millrace.wire.limits import (
    APPEND_HEADER_SIZE_BYTES,
    FRAME_SIZE_BYTES_MAX,
    SEQUENCED_APPEND_HEADER_SIZE_BYTES,
)
from tests.support.clock import ManualClock

STREAM = "tests/stream"
WRITER_NUMBER = 7


class Append(NamedTuple):
    """An append that arrived and was not answered."""

    transport: "FakeTransport"
    request_id: int
    segment_id: int
    event_number: int
    event_count: int
    writer_epoch: int
    sequences: Sequences | None
    payload: bytes


@dataclass
class Segment:
    """A segment with the events of one writer."""

    low: int
    last: int
    sealed: bool = False
    length: int = 0
    last_number: int = 0
    events: list[tuple[str | None, bytes]] = field(default_factory=list)


class FakeTransport(asyncio.Transport):
    """Hands what a connection writes to the server, and what the server writes to the connection."""

    def __init__(self, server: "ModelServer", connection: Connection) -> None:
        super().__init__()
        self._server = server
        self._connection = connection
        self._received = bytearray()
        self._closing = False
        self._is_muted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_muted:
            return
        self._received += data
        while len(self._received) >= 4 and (size := int.from_bytes(self._received[:4], "little")) <= len(
            self._received
        ):
            frame = bytes(self._received[:size])
            del self._received[:size]
            self._server.receive(self, frame)

    def send(self, frame: bytes) -> None:
        """Let the connection receive a frame, unless it was closed."""
        while frame and not self._closing:
            buffer = self._connection.get_buffer(-1)
            size = min(len(buffer), len(frame))
            buffer[:size] = frame[:size]
            self._connection.buffer_updated(size)
            frame = frame[size:]

    def lose(self) -> None:
        """Let the connection be lost."""
        if not self._closing:
            self._closing = True
            self._connection.connection_lost(ConnectionResetError("lost by the test"))

    def mute(self) -> None:
        """Let the peer be dead: nothing comes from it, and it hears nothing."""
        self._closing = self._is_muted = True

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self._closing


class ModelServer:
    """One stream with events of one writer, and the row of its sequences.

    Attributes:
        epoch: under which the writer was opened last.
        history: everything that was stored, also in segments that are deleted: segment, key, value.
    """

    def __init__(self, *, segment_count: int = 1, options: ClientOptions | None = None) -> None:
        self.clock = ManualClock()
        self.options = options or ClientOptions()
        self.down = False
        self.appends_in_flight_max = 100
        self.append_size_max = APPEND_SIZE_BYTES_MAX
        self.stream_id = 5
        self.segments: dict[int, Segment] = {}
        self.arrived: deque[Append] = deque()
        self.requests: list[m.Message] = []
        self.connects = 0
        self.epoch = 0
        self.row = SequenceRow()
        self.history: list[tuple[int, str | None, bytes]] = []
        # Of the openings, the newest one last.
        self._nonces: list[bytes] = []
        # What a request of a class is answered with, in place of the truth.
        self.answers: dict[type[m.Message], m.Message] = {}
        self._ids = count(1)
        # The last one of each session.
        self.transports: dict[bytes, FakeTransport] = {}
        for part in equal_ranges(segment_count):
            self.segments[next(self._ids)] = Segment(part.low, part.high - 1)

    def channel(self) -> Channel:
        """Return a channel to this server; inside a running loop."""
        return Channel(
            Addresses((Address("model", 1),)),
            self.options,
            ClientGuard(),
            clock=self.clock,
            chance=lambda: 0.0,
            connect=self.connect,
        )

    async def connect(self, address: Addresses, options: ClientOptions, session_id: bytes) -> Connection:
        """Fills the seam of `Channel`."""
        await asyncio.sleep(0)
        if self.down:
            raise ServerUnreachableError(str(address), "it is down")
        connection = Connection(options, address.members[0], session_id)
        self.transports[session_id] = transport = FakeTransport(self, connection)
        connection.connection_made(transport)
        await connection.handshake()
        self.connects += 1
        return connection

    # --- what the test does ---

    def answer(self, number: int = 1 << 30, *, heard: bool = True) -> None:
        """Answer so many of the appends that arrived; what is not `heard` is stored, and the answer gets lost."""
        for _ in range(min(number, len(self.arrived))):
            append = self.arrived.popleft()
            answer = self._store(append)
            if heard:
                append.transport.send(answer)

    def refuse(self, code: ErrorCode, *, retriable: bool = False, stored: bool = False) -> None:
        """Answer the next append with an error; those sent after it leave a gap, unless it is `stored` all the same.

        As in the server, a sealed segment acks what it has stored.
        """
        append = self.arrived.popleft()
        if stored:
            self._store(append)
        segment = self.segments.get(append.segment_id)
        is_stored = segment is not None and append.event_number + append.event_count - 1 <= segment.last_number
        if code is ErrorCode.SEGMENT_SEALED and is_stored:
            append.transport.send(ack_frame(append.request_id, offset=-1, duplicate=True))
        else:
            append.transport.send(error_frame(code, append.request_id, retriable=retriable))

    def lose(self) -> None:
        """Lose all connections, with all that was not answered."""
        self.arrived.clear()
        for transport in self.transports.values():
            transport.lose()

    def forget(self, transport: FakeTransport, *, kept: int) -> None:
        """Lose what arrived on a connection, but for so many appends."""
        mine = [append for append in self.arrived if append.transport is transport]
        for append in mine[kept:]:
            self.arrived.remove(append)

    def send(self, frame: bytes) -> None:
        """Let the connections receive a frame."""
        for transport in self.transports.values():
            transport.send(frame)

    def replace(self, sealed_ids: list[int], number: int) -> list[int]:
        """Seal segments, and return as many successors of their joint range, which is one."""
        low = min(self.segments[each].low for each in sealed_ids)
        last = max(self.segments[each].last for each in sealed_ids)
        for each in sealed_ids:
            self.segments[each].sealed = True
        size = (last + 1 - low) // number
        made = []
        for index in range(number):
            end = last if index == number - 1 else low + (index + 1) * size - 1
            made.append(next(self._ids))
            self.segments[made[-1]] = Segment(low + index * size, end)
        return made

    def open_ids(self) -> list[int]:
        """Return the open segments in the order of their keys."""
        return sorted((i for i, each in self.segments.items() if not each.sealed), key=lambda i: self.segments[i].low)

    def events(self) -> Iterator[tuple[str | None, bytes]]:
        """Yield what is stored, predecessors first."""
        for segment_id in sorted(self.segments):
            yield from self.segments[segment_id].events

    # --- what the transport does ---

    def receive(self, transport: FakeTransport, frame: bytes) -> None:
        """Take a frame of the client."""
        header = decode_header(frame)
        if header.type in m.APPENDS:
            self.arrived.append(_append(transport, frame, is_sequenced=header.type == m.SequencedAppend.type))
            return
        message = decode(frame)[1]
        self.requests.append(message)
        answer = self._answer_of(message)
        if answer is not None:
            asyncio.get_running_loop().call_soon(transport.send, encode(answer, request_id=header.request_id))

    def _store(self, append: Append) -> bytes:
        segment = self.segments.get(append.segment_id)
        last = append.event_number + append.event_count - 1
        if append.writer_epoch < self.epoch:
            return error_frame(ErrorCode.WRITER_FENCED, append.request_id)
        if segment is None:
            return error_frame(ErrorCode.SEGMENT_NOT_FOUND, append.request_id)
        if last <= segment.last_number:
            return ack_frame(append.request_id, offset=-1, duplicate=True)
        if segment.sealed:
            return error_frame(ErrorCode.SEGMENT_SEALED, append.request_id)
        if append.event_number != segment.last_number + 1:
            return error_frame(ErrorCode.EVENT_NUMBER_GAP, append.request_id)
        if append.sequences is not None:
            keys = KeyRange.inclusive(segment.low, segment.last)
            if append.sequences.first <= self.row.lowest_in(keys):
                return error_frame(ErrorCode.SEQUENCES_REFUSED, append.request_id)
            self.row.store(keys, last=append.sequences.last, stored_below=append.sequences.stored_below)
        block = unpack_block(append.payload)
        assert block.fields.first_event_number == append.event_number
        assert block.fields.event_count == append.event_count
        events = list(zip(block.keys(), block.values(), strict=True))
        segment.events += events
        self.history += [(append.segment_id, key, value) for key, value in events]
        segment.last_number = last
        offset, segment.length = segment.length, segment.length + len(append.payload)
        return ack_frame(append.request_id, offset=offset)

    def _answer_of(self, message: m.Message) -> m.Message | None:
        if type(message) in self.answers:
            return self.answers[type(message)]
        if isinstance(message, m.Hello):
            return m.HelloReply(
                version=message.version_max,
                features=0,
                frame_size_max=FRAME_SIZE_BYTES_MAX,
                append_size_max=self.append_size_max,
                appends_in_flight_max=self.appends_in_flight_max,
                server_id=bytes(16),
                server="model",
            )
        if isinstance(message, m.GetStream):
            return self.stream()
        if isinstance(message, m.OpenWriter | m.GetWriter):
            return self._writer(message)
        if isinstance(message, m.TellStored):
            if message.writer_epoch < self.epoch:
                return error_reply(ErrorCode.WRITER_FENCED)
            return m.Done(changed=int(self.row.raise_through(message.stored_below)))
        return m.Pong() if isinstance(message, m.Ping) else None

    def _writer(self, message: m.OpenWriter | m.GetWriter) -> m.Message:
        if any(each not in self.segments for each in message.segment_ids):
            return error_reply(ErrorCode.SEGMENT_NOT_FOUND)
        if isinstance(message, m.GetWriter):
            if message.writer_epoch and message.writer_epoch < self.epoch:
                return error_reply(ErrorCode.WRITER_FENCED)
        elif message.writer_id and message.nonce in self._nonces[:-1]:
            return error_reply(ErrorCode.WRITER_FENCED)
        elif not message.writer_id or message.nonce not in self._nonces:
            self._nonces.append(message.nonce)
            self.epoch += 1
        return m.WriterOpened(
            writer_number=WRITER_NUMBER,
            writer_epoch=self.epoch,
            known=1,
            active_us=0,
            expired_us=0,
            states=[m.WriterState(each, self.segments[each].last_number) for each in message.segment_ids],
            stored_through=self.row.through,
            marks=[m.SequenceMark(low, mark) for low, mark in self.row.pieces()],
        )

    def stream(self) -> m.StreamInfo:
        """Return what the server tells of the stream."""
        return m.StreamInfo(
            created=0,
            stream_id=self.stream_id,
            created_us=0,
            epoch=0,
            sealed=0,
            name=STREAM,
            configuration="",
            segments=[
                m.StreamSegment(number, each.low, each.last, 0, 0, 0, each.length, len(each.events), int(each.sealed))
                for number, each in self.segments.items()
            ],
        )


def _append(transport: FakeTransport, frame: bytes, *, is_sequenced: bool) -> Append:
    values = APPEND_HEADER.unpack_from(frame)
    event_count, request_id, segment_id, _, event_number = values[5:10]
    size = SEQUENCED_APPEND_HEADER_SIZE_BYTES if is_sequenced else APPEND_HEADER_SIZE_BYTES
    sequences = Sequences(*SEQUENCES.unpack_from(frame, APPEND_HEADER_SIZE_BYTES)) if is_sequenced else None
    return Append(transport, request_id, segment_id, event_number, event_count, values[11], sequences, frame[size:])


def ack_frame(request_id: int, *, offset: int, duplicate: bool = False) -> bytes:
    """Return the ack of one append."""
    return encode(m.AppendAck([m.AppendAckEntry(request_id, offset, 1, int(duplicate))]))


def error_reply(code: ErrorCode, *, retriable: bool = False) -> m.ErrorReply:
    """Return an error as the server says it."""
    return m.ErrorReply(
        code=code,
        retriable=int(retriable),
        retry_after_ms=0,
        start_offset=-1,
        length=-1,
        subject="",
        message=code.name,
    )


def error_frame(code: ErrorCode, request_id: int, *, retriable: bool = False) -> bytes:
    """Return the answer to one append that was not stored."""
    return encode(error_reply(code, retriable=retriable), request_id=request_id)


async def turns(count: int = 20) -> None:
    """Let everything run that needs no answer and no time."""
    for _ in range(count):
        await asyncio.sleep(0)
