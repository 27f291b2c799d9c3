"""Segments: durable sequences of bytes, by name.

Names are resolved to ids once and remembered; an id that the server no longer knows is forgotten and its name
resolved again, so a segment that was deleted and created again is found.
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
    """A segment as it was when the server answered.

    Attributes:
        event_count: events appended since it was created, those truncated included.
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
    """Bytes that were read.

    Attributes:
        offset: of the first byte of `data`.
        at_tail: nothing durable follows `data`.
        end_of_segment: the segment is sealed and nothing follows `data`, ever.
        length: durable length of the segment when the bytes were sent.
    """

    data: bytes
    offset: int
    at_tail: bool
    end_of_segment: bool
    length: int

    @property
    def next_offset(self) -> int:
        """Where to read on."""
        return self.offset + len(self.data)


def checked_segment_name(name: str) -> str:
    """Return `name` if it is valid: a name of the rule, or the internal name of a stream's segment.

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
    """Return `data` if one append can hold it.

    Raises:
        EventTooLargeError: more than 16 MiB.
        InvalidArgumentError: empty.
        TypeError: not bytes.
    """
    if not isinstance(data, bytes):
        if not isinstance(data, bytearray | memoryview):
            raise TypeError(f"an append holds bytes, not {type(data).__name__}")
        data = bytes(data)  # owned: the caller may change it before it is sent
    if len(data) > APPEND_SIZE_BYTES_MAX:
        raise EventTooLargeError(f"an append holds at most {APPEND_SIZE_BYTES_MAX} bytes, not {len(data)}")
    if not data:
        raise InvalidArgumentError("an append holds at least one byte")
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
            SegmentExistsError: there is one of that name.
            AnswerLostError, AnswerTimeoutError: it was sent, and no answer came: it may have been done.
        """
        reply = await self._writes.request(m.CreateSegment(checked_segment_name(name)), repeatable=False)
        self._remember(name, reply.segment_id)
        return _info(reply)

    async def append(self, name: str, data: Buffer, *, expected_offset: int | None = None) -> int:
        """Append bytes and return the offset of the first; they are durable on return.

        Appends made one after the other, without waiting for each, are applied in that order. Nothing is ever sent
        twice without a condition. Cancelling forgets the outcome; the bytes may still be stored.

        Args:
            expected_offset: store only if the segment has this length.

        Raises:
            ConditionFailedError: the segment has another length.
            SegmentSealedError, SegmentNotFoundError, ThrottledError: nothing was stored.
            PipelineBrokenError: an append of this client to the same segment failed while this one, which has no
                condition, was on its way after it; nothing was stored.
            AnswerLostError, AnswerTimeoutError: it was sent, and no answer came: it may have been done.
        """
        data, expected = checked_payload(data), _checked_expected(expected_offset)
        return await self._with_id(
            name, lambda segment_id: self._writes.append(data, segment_id=segment_id, expected_offset=expected)
        )

    async def open(self, name: str) -> "Segment":
        """Return a handle whose appends need no look-up: for pipelines."""
        return Segment(name, await self._resolve(name), self._writes)

    async def read(self, name: str, offset: int, *, max_bytes: int = 65536, wait_s: float = 0.0) -> ReadResult:
        """Read up to `max_bytes` from `offset`; fewer may come. Cancelling is safe.

        Args:
            max_bytes: at most 8 MiB come at once, whatever is asked for.
            wait_s: how long to wait at the tail; then the result is empty.

        Raises:
            SegmentTruncatedError: `offset` is below the start.
            OffsetBeyondEndError: `offset` is beyond the length.
            SegmentDamagedError: the bytes fail their checksum on the server.
        """
        are_numbers = isinstance(offset, int) and isinstance(max_bytes, int) and isinstance(wait_s, int | float)
        if not are_numbers or offset < 0 or max_bytes < 1 or not wait_s >= 0:
            raise InvalidArgumentError(f"offset={offset!r}, max_bytes={max_bytes!r}, wait_s={wait_s!r} cannot be read")
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
        """Yield bytes from `offset` on (None: the tail) as they become durable, until the end of a sealed segment.

        The server pushes; nothing is polled. Reconnects by itself, without a gap or a repeat. Closing or cancelling
        the iterator ends the subscription.

        Raises:
            SegmentTruncatedError, OffsetBeyondEndError: `offset` is not in the segment.
            SegmentNotFoundError: there is none, or it was deleted.
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
        """Return what a segment is now.

        Raises:
            SegmentNotFoundError: there is none of that name.
        """
        reply = await self._writes.request(m.GetSegment(0, checked_segment_name(name)))
        self._remember(name, reply.segment_id)
        return _info(reply)

    async def seal(self, name: str) -> SegmentInfo:
        """Let a segment take no more appends, forever; sealing it again changes nothing."""
        segment_id = await self._resolve(name)
        return _info(await self._writes.request(m.SealSegment(segment_id)))

    async def truncate(self, name: str, offset: int) -> SegmentInfo:
        """Drop everything before `offset`; the offsets of the rest do not change.

        Raises:
            OffsetBeyondEndError: beyond the length.
        """
        if offset < 0:
            raise InvalidArgumentError(f"offset={offset} is no offset")
        segment_id = await self._resolve(name)
        return _info(await self._writes.request(m.TruncateSegment(segment_id, offset)))

    async def delete(self, name: str) -> bool:
        """Delete a segment with all its bytes; False if there was none."""
        try:
            segment_id = await self._resolve(name)
        except SegmentNotFoundError:
            return False
        self._ids.pop(name, None)
        reply = await self._writes.request(m.DeleteSegment(segment_id))
        return bool(reply.changed)

    async def merge(self, target: str, *, source: str) -> SegmentInfo:
        """Move all bytes of the sealed segment `source` to the end of `target`, as one; return the target.

        Repeating it changes nothing: a source that is gone because it was merged into that target is no error.

        Raises:
            SegmentNotFoundError: one of them does not exist.
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
        """Yield the segments whose names start with `prefix`, in the order of their names."""
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
        """Set an attribute if it has the expected value; absent (None) is a value.

        Raises:
            AttributeConditionFailedError: it has another value; nothing was changed.
            AttributesFullError: the attributes of the segment, or of all segments, would get too large.
            AnswerLostError, AnswerTimeoutError: it was sent, and no answer came: it may have been done.
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
        """Return the answer about the id of a name; if that is a remembered one that is gone, about its id now."""
        remembered = self._ids.get(name)
        try:
            return await ask(remembered or await self._resolve(name))
        except SegmentNotFoundError:
            self._ids.pop(name, None)
            if remembered is None or remembered == (segment_id := await self._resolve(name)):
                raise
            return await ask(segment_id)


class Segment:
    """A handle of one segment for pipelines of appends: made by `client.segments.open`."""

    def __init__(self, name: str, segment_id: int, channel: Channel) -> None:
        self.name = name
        self.segment_id = segment_id
        self._channel = channel

    async def append(self, data: Buffer, *, expected_offset: int | None = None) -> int:
        """Append bytes and return their offset; see `Segments.append`."""
        data, expected = checked_payload(data), _checked_expected(expected_offset)
        return await self._channel.append(data, segment_id=self.segment_id, expected_offset=expected)

    def append_nowait(self, data: Buffer) -> "asyncio.Future[int]":
        """Send an append now; the future holds its offset once it is durable. Applied in the order of the calls.

        The future fails with `OutcomeUnknownError` if the connection is lost first; nothing is sent twice.

        Raises:
            BufferFullError: too many appends wait for their acks; `await drain()` between bursts.
            ConnectionLostError: there is no open connection; `await drain()` makes one.
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
        """Wait until the connection is open and has room for another append. Cancelling is safe."""
        connection = await self._channel.connection()
        await connection.wait_for_room(APPEND_SIZE_BYTES_MAX)


def _checked_expected(expected_offset: int | None) -> int:
    """Return the condition of an append as `Channel.append` takes it: -1 for none."""
    if expected_offset is None:
        return -1
    if expected_offset < 0:
        raise InvalidArgumentError(f"expected_offset={expected_offset} is no offset")
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
