"""Segments: durable sequences of bytes, addressed by name.

Names are resolved to ids once and cached. If the server no longer knows an id, the name is resolved again, which finds
a segment that was deleted and created again.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from millrace.client.errors import BufferFullError, ConnectionLostError, SegmentNotFoundError
from millrace.client.read.subscription import ByteSubscription
from millrace.client.transport.channel import Channel
from millrace.model.checksum import Buffer
from millrace.model.errors import EventTooLargeError, InvalidArgumentError
from millrace.model.limits import APPEND_SIZE_BYTES_MAX
from millrace.model.names import checked_name
from millrace.model.shown import Handle, ShortRepr
from millrace.wire import messages as m
from millrace.wire.client_session import Piece
from millrace.wire.limits import LIST_PAGE_COUNT_MAX, MIB, READ_SIZE_BYTES_MAX, READ_WAIT_S_MAX

R = TypeVar("R")

IDS_REMEMBERED_MAX: Final = 65536
TAIL_WINDOW_BYTES: Final = 4 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """Description of a segment at the time of the reply.

    Attributes:
        event_count: events appended since it was created, including truncated ones.
        created_us: Unix microseconds.
    """

    segment_id: int
    name: str
    start_offset: int
    length: int
    event_count: int
    created_us: int
    sealed: bool


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReadResult(ShortRepr):
    """Result of a read.

    Attributes:
        offset: offset of the first byte of `data`.
        at_tail: `data` ends at the durable tail.
        end_of_segment: `data` ends at the end of a sealed segment.
        length: durable length of the segment when the bytes were sent.
    """

    data: bytes
    offset: int
    at_tail: bool
    end_of_segment: bool
    length: int

    @property
    def next_offset(self) -> int:
        """The offset of the next read."""
        return self.offset + len(self.data)


def checked_segment_name(name: str) -> str:
    """Return `name` if it is a valid name, or the internal name of a stream's segment.

    Raises:
        InvalidNameError: otherwise.
    """
    stream, mark, number = name.partition("#") if isinstance(name, str) else (name, "", "")
    if mark and number.isascii() and number.isdigit():
        checked_name(stream, kind="segment")
    else:
        checked_name(name, kind="segment")
    return name


def checked_payload(data: Buffer) -> Buffer:
    """Return `data` if it fits in one append.

    Raises:
        EventTooLargeError: it has more than 16 MiB.
        InvalidArgumentError: it is empty.
        TypeError: it is not bytes.
    """
    if not isinstance(data, bytes):
        if not isinstance(data, bytearray | memoryview):
            raise TypeError(f"an append must be bytes, not {type(data).__name__}")
        data = bytes(data)  # a copy: the caller may change it before it is sent
    if len(data) > APPEND_SIZE_BYTES_MAX:
        raise EventTooLargeError(f"an append has at most {APPEND_SIZE_BYTES_MAX} bytes, not {len(data)}")
    if not data:
        raise InvalidArgumentError("an append must have at least one byte")
    return data


class Segments(Handle):
    """The segments of a server: `client.segments`."""

    def __init__(self, *, writes: Channel, reads: Channel) -> None:
        self._writes = writes
        self._reads = reads
        self._ids: dict[str, int] = {}

    def _facts(self) -> Iterator[str]:
        yield f"of {self._writes.address}"

    async def create(self, name: str) -> SegmentInfo:
        """Create a segment.

        Raises:
            SegmentExistsError: a segment of that name exists.
            AnswerLostError, AnswerTimeoutError: no reply arrived, so the segment may have been created.
        """
        reply = await self._writes.request(m.CreateSegment(checked_segment_name(name)), repeatable=False)
        self._remember(name, reply.segment_id)
        return _info(reply)

    async def append(self, name: str, data: Buffer, *, expected_offset: int | None = None) -> int:
        """Append bytes and return the offset of the first; they are durable on return.

        Pipelined appends are applied in the order of the calls. Appends without `expected_offset` are never resent. If
        cancelled, the bytes may still be stored.

        Args:
            expected_offset: append only if the segment has this length.

        Raises:
            ConditionFailedError: the segment has another length.
            SegmentSealedError, SegmentNotFoundError, ThrottledError: nothing was stored.
            PipelineBrokenError: an earlier append of this client to the segment failed while this one, without
                `expected_offset`, was in flight; nothing was stored.
            AnswerLostError, AnswerTimeoutError: no reply arrived, so the bytes may have been stored.
        """
        data, expected = checked_payload(data), _checked_expected(expected_offset)
        return await self._with_id(
            name, lambda segment_id: self._writes.append(data, segment_id=segment_id, expected_offset=expected)
        )

    async def open(self, name: str) -> "Segment":
        """Resolve the name once, and return a handle for pipelined appends."""
        return Segment(name, await self._resolve(name), self._writes)

    async def read(self, name: str, offset: int, *, max_bytes: int = 65536, wait_s: float = 0.0) -> ReadResult:
        """Read up to `max_bytes` from `offset`; the result may be shorter. Safe to cancel.

        Args:
            max_bytes: a read returns at most 8 MiB.
            wait_s: how long to wait for bytes at the tail before an empty result.

        Raises:
            SegmentTruncatedError: `offset` was truncated.
            OffsetBeyondEndError: `offset` is beyond the tail.
            SegmentDamagedError: the bytes fail their checksum on the server.
        """
        are_numbers = isinstance(offset, int) and isinstance(max_bytes, int) and isinstance(wait_s, int | float)
        if not are_numbers or offset < 0 or max_bytes < 1 or not wait_s >= 0:
            raise InvalidArgumentError(f"invalid offset={offset!r}, max_bytes={max_bytes!r} or wait_s={wait_s!r}")
        size_max = min(max_bytes, READ_SIZE_BYTES_MAX)
        wait_ms = int(min(wait_s, READ_WAIT_S_MAX) * 1000)
        piece = await self._with_id(
            name,
            lambda segment_id: self._reads.read(
                m.Read(segment_id=segment_id, offset=offset, size_max=size_max, wait_ms=wait_ms)
            ),
        )
        return _result(piece)

    async def tail(self, name: str, offset: int | None = None) -> AsyncGenerator[ReadResult, None]:
        """Yield bytes from `offset` (None: the tail) as they become durable, until the end of a sealed segment.

        The server pushes the bytes. The subscription survives reconnects without gap or repeat. Closing or cancelling
        the iterator ends it.

        Raises:
            SegmentTruncatedError, OffsetBeyondEndError: `offset` is not in the segment.
            SegmentNotFoundError: the segment does not exist, or was deleted.
        """
        info = await self.info(name)
        start = info.length if offset is None else offset
        subscription = ByteSubscription(self._reads, info.segment_id, offset=start, window_bytes=TAIL_WINDOW_BYTES)
        try:
            while (piece := await subscription.next()) is not None:
                yield _result(piece)
        finally:
            subscription.close()

    async def info(self, name: str) -> SegmentInfo:
        """Return the current description of a segment.

        Raises:
            SegmentNotFoundError: no segment has that name.
        """
        reply = await self._writes.request(m.GetSegment(0, checked_segment_name(name)))
        self._remember(name, reply.segment_id)
        return _info(reply)

    async def seal(self, name: str) -> SegmentInfo:
        """Seal a segment: it never accepts appends again. Idempotent."""
        segment_id = await self._resolve(name)
        return _info(await self._writes.request(m.SealSegment(segment_id)))

    async def truncate(self, name: str, offset: int) -> SegmentInfo:
        """Truncate the bytes before `offset`; the offsets of the rest do not change.

        Raises:
            OffsetBeyondEndError: `offset` is beyond the tail.
        """
        if offset < 0:
            raise InvalidArgumentError(f"offset must be at least 0, not {offset}")
        segment_id = await self._resolve(name)
        return _info(await self._writes.request(m.TruncateSegment(segment_id, offset)))

    async def delete(self, name: str) -> bool:
        """Delete a segment with all its bytes; False if it does not exist."""
        try:
            segment_id = await self._resolve(name)
        except SegmentNotFoundError:
            return False
        self._ids.pop(name, None)
        reply = await self._writes.request(m.DeleteSegment(segment_id))
        return bool(reply.changed)

    async def merge(self, target: str, *, source: str) -> SegmentInfo:
        """Move all bytes of the sealed segment `source` to the end of `target`, atomically; return the target.

        Idempotent: a source that was merged into the target before is not an error.

        Raises:
            SegmentNotFoundError: one of the segments does not exist.
        """
        target_id = await self._resolve(target)
        try:
            source_id = await self._resolve(source)
        except SegmentNotFoundError:
            source_id = 0  # the server knows whether it was merged
        self._ids.pop(source, None)
        request = m.MergeSegment(target_id=target_id, source_id=source_id, source=source)
        return _info(await self._writes.request(request))

    async def list(self, prefix: str = "") -> AsyncIterator[SegmentInfo]:
        """Yield the segments whose names start with `prefix`, sorted by name."""
        after = ""
        while True:
            page = await self._writes.request(m.ListSegments(prefix, after, LIST_PAGE_COUNT_MAX))
            for segment in page.segments:
                yield _info(segment)
            if not page.more or not page.segments:
                return
            after = page.segments[-1].name

    async def get_attribute(self, name: str, key: str) -> bytes | None:
        """Return the value of an attribute, None if it is absent."""
        reply = await self._writes.request(m.GetAttribute(await self._resolve(name), key))
        return reply.value if reply.present else None

    async def set_attribute(self, name: str, key: str, *, expected: bytes | None, value: bytes | None) -> None:
        """Compare and set an attribute; None stands for an absent attribute.

        Raises:
            AttributeConditionFailedError: the value differs from the expected one; nothing was changed.
            AttributesFullError: the attributes of the segment, or of all segments, would exceed their size limit.
            AnswerLostError, AnswerTimeoutError: no reply arrived, so the attribute may have been set.
        """
        message = m.SetAttribute(
            segment_id=await self._resolve(name),
            expected_present=expected is not None,
            present=value is not None,
            key=key,
            expected=expected or b"",
            value=value or b"",
        )
        await self._writes.request(message, repeatable=False)

    def _remember(self, name: str, segment_id: int) -> None:
        if len(self._ids) >= IDS_REMEMBERED_MAX:
            self._ids.clear()
        self._ids[name] = segment_id

    async def _resolve(self, name: str) -> int:
        return (await self.info(name)).segment_id

    async def _with_id(self, name: str, ask: Callable[[int], Awaitable[R]]) -> R:
        """Call `ask` with the id of a name; if a cached id is unknown to the server, resolve the name and retry."""
        remembered = self._ids.get(name)
        try:
            return await ask(remembered or await self._resolve(name))
        except SegmentNotFoundError:
            self._ids.pop(name, None)
            if remembered is None or remembered == (segment_id := await self._resolve(name)):
                raise
            return await ask(segment_id)


class Segment:
    """A handle for pipelined appends to one segment. Made by `client.segments.open`."""

    def __init__(self, name: str, segment_id: int, channel: Channel) -> None:
        self.name = name
        self.segment_id = segment_id
        self._channel = channel

    async def append(self, data: Buffer, *, expected_offset: int | None = None) -> int:
        """Append bytes and return their offset; see `Segments.append`."""
        data, expected = checked_payload(data), _checked_expected(expected_offset)
        return await self._channel.append(data, segment_id=self.segment_id, expected_offset=expected)

    def append_nowait(self, data: Buffer) -> "asyncio.Future[int]":
        """Send an append now; the future resolves to its offset once it is durable. Applied in the order of the calls.

        If the connection is lost first, the future raises `OutcomeUnknownError`; nothing is resent.

        Raises:
            BufferFullError: too many appends are in flight; `await drain()` between bursts.
            ConnectionLostError: not connected; `await drain()` connects.
        """
        self._channel.check()
        data = checked_payload(data)
        connection = self._channel.live
        if connection is None:
            raise ConnectionLostError(f"not connected to {self._channel.address}")
        if not connection.has_room(len(data)):
            raise BufferFullError(
                pending_bytes=connection.statistics().in_flight_bytes,
                limit_bytes=self._channel.options.in_flight_bytes_max,
            )
        return connection.append(data, segment_id=self.segment_id)

    async def drain(self) -> None:
        """Wait until the connection is open and has room for another append. Safe to cancel."""
        connection = await self._channel.connection()
        await connection.wait_for_room(APPEND_SIZE_BYTES_MAX)


def _checked_expected(expected_offset: int | None) -> int:
    """Return the condition of an append for `Channel.append`; -1 for none."""
    if expected_offset is None:
        return -1
    if expected_offset < 0:
        raise InvalidArgumentError(f"expected_offset must be at least 0, not {expected_offset}")
    return expected_offset


def _info(message: m.SegmentInfo | m.SegmentDescription) -> SegmentInfo:
    return SegmentInfo(
        segment_id=message.segment_id,
        name=message.name,
        start_offset=message.start_offset,
        length=message.length,
        event_count=message.event_count,
        created_us=message.created_us,
        sealed=bool(message.sealed),
    )


def _result(piece: Piece) -> ReadResult:
    return ReadResult(
        data=bytes(piece.data),
        offset=piece.offset,
        at_tail=bool(piece.flags & m.DataFlag.AT_TAIL),
        end_of_segment=bool(piece.flags & m.DataFlag.END_OF_SEGMENT),
        length=piece.length,
    )
