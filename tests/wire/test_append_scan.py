"""`scan_run` against a walk that runs construct on each frame."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model.checksum import crc32c
from millrace.model.limits import APPEND_SIZE_BYTES_MAX
from millrace.wire import messages as m
from millrace.wire.append_run import AppendRun, Sequences
from millrace.wire.append_scan import scan_run
from millrace.wire.errors import ChecksumError, ProtocolError
from millrace.wire.framing import encode, encode_append_header, encode_body
from millrace.wire.limits import (
    APPEND_HEADER_SIZE_BYTES,
    EVENT_NUMBER_MAX,
    RUN_EVENT_COUNT_MAX,
)
from tests.support.examples import examples
from tests.support.tables import table

SPOILT = 0xBAD


def append(payload: bytes = b"x", **fields: Any) -> bytes:
    """An append with these header fields, its checksum right unless it is `SPOILT`. Nothing is refused here."""
    header = {
        "length": APPEND_HEADER_SIZE_BYTES + len(payload),
        "checksum": 0,
        "type": int(m.Append.type),
        "flags": 0,
        "event_count": 1,
        "request_id": 1,
        "segment_id": 1,
        "writer_number": 0,
        "event_number": 0,
        "expected_offset": -1,
        "writer_epoch": 0,
    } | fields
    reserved, reserved_tail = header.pop("reserved", 0), header.pop("reserved_tail", 0)
    frame = bytearray(m.AppendHeader.build(header) + payload)
    frame[10:12] = reserved.to_bytes(2, "little")
    frame[60:64] = reserved_tail.to_bytes(4, "little")
    if header["checksum"] != SPOILT:
        frame[4:8] = crc32c(memoryview(frame)[8:], header["length"]).to_bytes(4, "little")
    return bytes(frame)


def scan(stream: bytes, start: int = 0) -> AppendRun | type[ProtocolError] | None:
    """What `scan_run` says, whether the buffer ends where the bytes do or old ones follow them."""
    found: list[AppendRun | type[ProtocolError] | None] = []
    for data in (bytearray(stream), bytearray(stream + append() * 2)):
        try:
            found.append(scan_run(data, memoryview(data), start=start, end=len(stream)))
        except ProtocolError as error:
            found.append(type(error))
    assert found[0] == found[1]
    return found[0]


def naive(stream: bytes, start: int = 0) -> AppendRun | type[ProtocolError] | None:
    """The specification of `scan_run`: frame by frame, by construct."""
    first = whole(stream, start)
    if first is None:
        return None
    if isinstance(first, type):
        return first
    frames, position = [first], start + first.length
    while first.expected_offset == -1:
        following = whole(stream, position)
        if following is None or isinstance(following, type):
            break
        events = sum(frame.event_count for frame in frames)
        if (
            following.expected_offset != -1
            or following.segment_id != first.segment_id
            or following.writer_number != first.writer_number
            or following.writer_epoch != first.writer_epoch
            or following.request_id != first.request_id + len(frames)
            or following.event_number != (first.event_number + events if first.writer_number else 0)
            or events + following.event_count > RUN_EVENT_COUNT_MAX
        ):
            break
        frames.append(following)
        position += following.length
    sizes = {frame.length for frame in frames}
    event_count = sum(frame.event_count for frame in frames)
    return AppendRun(
        offset=0,
        frames=stream[start:position],
        frame_count=len(frames),
        frame_size=sizes.pop() if len(sizes) == 1 else 0,
        event_count=event_count,
        request_id=first.request_id,
        segment_id=first.segment_id,
        writer_number=first.writer_number,
        writer_epoch=first.writer_epoch,
        last_event_number=first.event_number + event_count - 1 if first.writer_number else 0,
        expected_offset=first.expected_offset,
    )


def whole(stream: bytes, start: int) -> Any:
    """The header of the append at `start`; None if there is no whole one, an error if it is malformed."""
    rest = stream[start:]
    length = int.from_bytes(rest[:4], "little")
    if len(rest) < 24 or rest[8] != m.Append.type or length > len(rest):
        return None
    if length <= 64:
        return ProtocolError
    if crc32c(rest[8:length], length) != int.from_bytes(rest[4:8], "little"):
        return ChecksumError
    if rest[9] or any(rest[10:12]) or any(rest[60:64]):
        return ProtocolError
    header = m.AppendHeader.parse(rest)
    writer = header.writer_number
    if header.expected_offset < -1 or bool(writer) != bool(header.event_number) or (header.writer_epoch and not writer):
        return ProtocolError
    if writer and (not header.event_count or header.event_number + header.event_count - 1 > EVENT_NUMBER_MAX):
        return ProtocolError
    return header


PECULIAR = {
    "type": [4, 28, 128],
    "flags": [1, 128],
    "reserved": [1, 0x8000],
    "reserved_tail": [1, 1 << 31],
    "event_count": [0, 2, 7, (1 << 32) - 1],
    "request_id": [0, 1, (1 << 64) - 1],
    "segment_id": [0, 2, (1 << 64) - 1],
    "writer_number": [0, 1, 2],
    "event_number": [0, 1, 1 << 63, EVENT_NUMBER_MAX, (1 << 64) - 1],
    "expected_offset": [0, 5, -2, (1 << 63) - 1, -(1 << 63)],
    "writer_epoch": [0, 1, 2],
    "length": [0, 23, 24, 63, 64, 65, 66, 200, (1 << 32) - 1],
    "checksum": [SPOILT],
}


@st.composite
def streams(draw: st.DrawFn, *, longest: int) -> bytes:
    """Appends of which most continue in a pattern, and some do not, in one field each."""
    writer = draw(st.sampled_from([0, 3]))
    state = {
        "request_id": draw(st.sampled_from([1, 1000, (1 << 64) - 40, (1 << 64) - 2])),
        "writer_number": writer,
        "writer_epoch": 1 if writer else 0,
        "event_number": draw(st.sampled_from([1, 1 << 32, EVENT_NUMBER_MAX - 50])) if writer else 0,
        "event_count": draw(st.sampled_from([1, 5, 1 << 27])),
    }
    frames = []
    for _ in range(draw(st.integers(1, 4))):
        payload = draw(st.binary(min_size=1, max_size=20))
        for _ in range(draw(st.sampled_from([1, 2, 5, longest]))):
            frames.append(append(payload, **state))
            state["request_id"] = (state["request_id"] + 1) % (1 << 64)
            state["event_number"] += state["event_count"] if writer else 0
        if draw(st.booleans()):
            field = draw(st.sampled_from(sorted(PECULIAR)))
            frames.append(append(payload, **{**state, field: draw(st.sampled_from(PECULIAR[field]))}))
            state["request_id"] = (state["request_id"] + 1) % (1 << 64)
            state["event_number"] += state["event_count"] if writer else 0
    return b"".join(frames)


def check_every_run(stream: bytes) -> None:
    position = 0
    while True:
        found = scan(stream, position)
        assert found == naive(stream, position)
        if not isinstance(found, AppendRun):
            return
        assert found.frames
        position += len(found.frames)


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(streams(longest=12), st.integers(0, 100))
def test_runs_are_what_a_walk_with_construct_finds(stream: bytes, cut: int) -> None:
    check_every_run(stream)
    check_every_run(stream[: max(0, len(stream) - cut)])


@pytest.mark.slow
@settings(max_examples=examples(12))
@given(streams(longest=300), st.integers(0, 100), st.data())
def test_long_runs_are_what_a_walk_with_construct_finds(stream: bytes, cut: int, drawn: st.DataObject) -> None:
    """Long enough for several blocks of headers that are looked at together; one bit of one of them is flipped."""
    flipped = bytearray(stream)
    bit = drawn.draw(st.integers(0, 8 * len(stream) - 1))
    flipped[bit // 8] ^= 1 << bit % 8

    check_every_run(bytes(flipped[: max(0, len(stream) - cut)]))


@given(st.binary(max_size=200), st.booleans())
def test_noise_is_never_a_run(noise: bytes, like_an_append: bool) -> None:
    """Behaviour 49: garbage gives a protocol error or nothing, and no other exception."""
    stream = bytearray(noise)
    if like_an_append and len(stream) > 8:
        stream[8] = m.Append.type
        stream[1:4] = bytes(3)

    assert scan(bytes(stream)) == naive(bytes(stream))


@table("count", [1, 2, 32, 33, 34, 255, 256, 257, 276, 286, 287, 288, 289, 512])
def test_a_pattern_is_one_run_to_its_end(count: int) -> None:
    stream = b"".join(
        append(b"payload", request_id=10 + i, writer_number=3, writer_epoch=2, event_number=1 + 4 * i, event_count=4)
        for i in range(count)
    )

    assert scan(stream) == AppendRun(
        offset=0,
        frames=stream,
        frame_count=count,
        frame_size=71,
        event_count=4 * count,
        request_id=10,
        segment_id=1,
        writer_number=3,
        writer_epoch=2,
        last_event_number=4 * count,
        expected_offset=-1,
    )


@pytest.mark.parametrize("place", [1, 31, 32, 33, 34, 254, 255, 256, 257, 299])
@table("field", sorted(PECULIAR))
def test_a_frame_that_differs_ends_the_run_wherever_it_is(field: str, place: int) -> None:
    """Around every border of what is looked at together."""
    for value in PECULIAR[field]:
        frames = [append(b"payload", request_id=10 + i) for i in range(300)]
        frames[place] = append(b"payload", **{"request_id": 10 + place, field: value})
        stream = b"".join(frames)
        run = scan(stream)

        assert isinstance(run, AppendRun)
        if frames[place] == append(b"payload", request_id=10 + place):
            assert run.frame_count == 300
        elif field == "event_count":
            assert run.frame_count in {300, place}
            assert run.frame_count == 300 or value == (1 << 32) - 1
        else:
            assert run.frame_count == place
            assert len(run.frames) == place * 71


@table("sizes", [(5, 6), (6, 5), (5,) * 50 + (6,)])
def test_appends_of_different_sizes_are_one_run(sizes: tuple[int, ...]) -> None:
    stream = b"".join(append(bytes(size), request_id=1 + index) for index, size in enumerate(sizes))
    run = scan(stream)

    assert isinstance(run, AppendRun)
    assert (run.frame_count, run.frame_size, len(run.frames)) == (len(sizes), 0, len(stream))


def test_every_flipped_bit_of_a_first_append_is_refused() -> None:
    """Behaviour 49: every bit flipped in turn."""
    frame = append(b"payload", writer_number=3, writer_epoch=2, event_number=5)
    for bit in range(8 * len(frame)):
        flipped = bytearray(frame)
        flipped[bit // 8] ^= 1 << bit % 8

        assert scan(bytes(flipped)) in {ProtocolError, ChecksumError, None}
        # With more bytes after it, so that a longer length finds something to cover.
        assert scan(bytes(flipped) + append(b"y" * 70, request_id=2) * 8) in {ProtocolError, ChecksumError, None}


@pytest.mark.parametrize("place", [1, 50])
def test_every_flipped_bit_of_a_later_append_ends_the_run_before_it(place: int) -> None:
    """Behaviour 49: every bit flipped in turn; the good appends before it are not disturbed."""
    frames = [append(b"pay", request_id=1 + i) for i in range(80)]
    for bit in range(8 * len(frames[place])):
        flipped = bytearray(frames[place])
        flipped[bit // 8] ^= 1 << bit % 8
        run = scan(b"".join([*frames[:place], bytes(flipped), *frames[place + 1 :]]))

        assert isinstance(run, AppendRun)
        assert run.frame_count == place


def test_an_append_in_pieces_is_no_run_until_it_is_whole() -> None:
    frame = append(b"payload")

    assert [scan(frame[:size]) for size in range(len(frame))] == [None] * len(frame)
    assert isinstance(scan(frame), AppendRun)


@table("cut", range(1, 71, 7))
@table("count", [1, 2, 40])
def test_bytes_after_the_end_are_not_read(count: int, cut: int) -> None:
    """They are what an earlier frame left there, and may even look right."""
    data = bytearray(b"".join(append(b"payload", request_id=1 + i) for i in range(count)))

    run = scan_run(data, memoryview(data), start=0, end=len(data) - cut)

    assert (run.frame_count if run else 0) == count - 1


@pytest.mark.parametrize("place", [2, 40])
def test_an_append_of_a_writer_without_events_ends_the_run(place: int) -> None:
    frames = [append(request_id=1 + i, writer_number=3, event_number=1 + i) for i in range(place)]
    run = scan(b"".join(frames) + append(request_id=1 + place, writer_number=3, event_number=1 + place, event_count=0))

    assert isinstance(run, AppendRun)
    assert run.frame_count == place


def test_request_ids_do_not_begin_again() -> None:
    last = (1 << 64) - 1
    run = scan(b"".join(append(request_id=(last - 40 + i) % (1 << 64)) for i in range(100)))

    assert isinstance(run, AppendRun)
    assert run.frame_count == 41


def test_a_frame_of_another_type_is_no_run() -> None:
    assert scan(encode(m.Ping())) is None
    assert scan(encode_body(m.Read.type, bytes(200), request_id=1)) is None


@table("size", [24, 30, 63, 64])
def test_an_append_without_a_payload_is_refused(size: int) -> None:
    """One shorter than its header would otherwise count as a payload of less than nothing."""
    short = encode_body(m.Append.type, bytes(size - 24), request_id=1)

    assert scan(short) is ProtocolError
    assert scan(short + append()) is ProtocolError


@table(
    "fields",
    [
        {"flags": 1},
        {"reserved": 1},
        {"reserved_tail": 1},
        {"expected_offset": -2},
        {"writer_number": 1},
        {"event_number": 1},
        {"writer_epoch": 1},
        {"writer_number": 1, "event_number": 1, "event_count": 0},
    ],
)
def test_a_first_append_that_contradicts_itself_is_refused(fields: dict[str, Any]) -> None:
    assert scan(append(**fields)) is ProtocolError


def test_a_conditional_append_is_a_run_of_its_own() -> None:
    stream = append(expected_offset=7) + append(request_id=2)
    run = scan(stream)

    assert isinstance(run, AppendRun)
    assert (run.frame_count, run.expected_offset) == (1, 7)


def test_the_events_of_a_run_fit_the_entry_of_the_log() -> None:
    """A hostile count must end the run, not fail the log."""
    for count in (2, 50):
        stream = b"".join(append(request_id=1 + i, event_count=1 << 31) for i in range(count))
        run = scan(stream)

        assert isinstance(run, AppendRun)
        assert (run.frame_count, run.event_count) == (1, 1 << 31)


def test_the_number_of_an_event_stays_below_its_limit() -> None:
    """A database of signed numbers keeps the last event number of each writer."""

    def from_writer(number: int, count: int) -> bytes:
        return append(writer_number=1, event_number=number, event_count=count)

    assert isinstance(scan(from_writer(EVENT_NUMBER_MAX, 1)), AppendRun)
    assert isinstance(scan(from_writer(EVENT_NUMBER_MAX - 9, 10)), AppendRun)
    assert scan(from_writer(EVENT_NUMBER_MAX - 9, 11)) is ProtocolError
    assert scan(from_writer(EVENT_NUMBER_MAX + 1, 1)) is ProtocolError


def test_the_header_of_a_client_is_read_back() -> None:
    header = encode_append_header(
        request_id=9, segment_id=8, payload=b"abc", event_count=2, writer_number=7, writer_epoch=6, event_number=5
    )

    assert scan(header + b"abc") == AppendRun(
        segment_id=8,
        offset=0,
        frames=header + b"abc",
        frame_count=1,
        frame_size=67,
        event_count=2,
        writer_number=7,
        last_event_number=6,
        writer_epoch=6,
        request_id=9,
    )


@pytest.mark.parametrize("fields", [{}, {"sequences": Sequences(0, 0, 0), "writer_number": 1, "event_number": 1}])
def test_the_largest_payload_is_the_same_for_all_appends(fields: dict[str, Any]) -> None:
    for size, is_taken in [(APPEND_SIZE_BYTES_MAX, True), (APPEND_SIZE_BYTES_MAX + 1, False)]:
        header = bytearray(encode_append_header(request_id=1, segment_id=1, payload=b"x", **fields))
        header[:4] = (len(header) + size).to_bytes(4, "little")
        payload = bytes(size)
        header[4:8] = crc32c(payload, crc32c(header[8:], len(header) + size)).to_bytes(4, "little")
        data = header + payload
        if is_taken:
            run = scan_run(data, memoryview(data), start=0, end=len(data))
            assert run is not None
            assert run.payload_size == size
        else:
            with pytest.raises(ProtocolError, match="not 1 to"):
                scan_run(data, memoryview(data), start=0, end=len(data))


# --- sequenced appends ---


def sequenced(sequences: tuple[int, int, int] = (5, 9, 3), *, payload: bytes = b"abc", **fields: Any) -> bytes:
    """A sequenced append of three events."""
    numbers = {"segment_id": 7, "request_id": 1, "event_count": 3, "writer_number": 2, "event_number": 1} | fields
    return encode_append_header(payload=payload, sequences=Sequences(*sequences), **numbers) + payload


NUMBERS = st.integers(-1, 12)


@given(NUMBERS, NUMBERS, NUMBERS, st.integers(1, 5))
def test_a_sequenced_append_is_read_with_its_sequences_if_they_ascend(
    first: int, last: int, below: int, count: int
) -> None:
    found = scan(sequenced((first, last, below), event_count=count))

    if 0 <= below <= first and last - first + 1 >= count:
        assert isinstance(found, AppendRun)
        assert (found.sequences, found.header_size) == ((first, last, below), 88)
        assert (found.payload_size, found.event_count, found.last_event_number) == (3, count, count)
    else:
        assert found is ProtocolError


def test_a_sequenced_append_is_a_run_of_its_own() -> None:
    """Whatever follows it, or whatever it follows, in the pattern of its numbers."""
    numbers: dict[str, Any] = {"segment_id": 7, "event_count": 3, "writer_number": 2, "payload": b"abc"}
    plain = [encode_append_header(request_id=1 + i, event_number=1 + 3 * i, **numbers) + b"abc" for i in range(2)]
    firsts = [sequenced(), plain[0]]
    seconds = [sequenced((10, 12, 5), request_id=2, event_number=4), plain[1]]

    for first, second in [(firsts[0], seconds[0]), (firsts[0], seconds[1]), (firsts[1], seconds[0])]:
        found = scan(first + second)
        assert isinstance(found, AppendRun)
        assert (found.frames, found.frame_count) == (first, 1)


def test_a_sequenced_append_has_a_writer() -> None:
    assert scan(sequenced(writer_number=0, event_number=0)) is ProtocolError


@table("size", [0, 1, 23, 24])
def test_a_sequenced_append_has_a_payload_after_its_longer_header(size: int) -> None:
    frame = bytearray(sequenced(payload=b"x" * 30)[: 64 + size])
    frame[:4] = len(frame).to_bytes(4, "little")
    frame[4:8] = crc32c(memoryview(frame)[8:], len(frame)).to_bytes(4, "little")

    assert scan(bytes(frame)) is ProtocolError


def test_every_flipped_bit_of_a_sequenced_append_is_refused() -> None:
    frame = bytearray(sequenced())
    for bit in range(64, 8 * len(frame)):
        frame[bit // 8] ^= 1 << bit % 8
        assert not isinstance(scan(bytes(frame)), AppendRun)
        frame[bit // 8] ^= 1 << bit % 8


def test_a_sequenced_append_in_pieces_is_no_run_until_it_is_whole() -> None:
    frame = sequenced()
    assert {scan(frame[:size]) for size in range(len(frame))} == {None}
