from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model.limits import APPEND_SIZE_BYTES_MAX
from millrace.wire import messages as m
from millrace.wire.append_run import Sequences
from millrace.wire.errors import ChecksumError, CodecError
from millrace.wire.framing import (
    decode,
    decode_header,
    encode,
    encode_append_header,
    encode_body,
    encode_data,
    verify,
)
from millrace.wire.limits import (
    CONTROL_FRAME_SIZE_BYTES_MAX,
    FRAME_SIZE_BYTES_MAX,
    READ_SIZE_BYTES_MAX,
    RECORD_SIZE_BYTES_MAX,
)
from millrace.wire.schema.frame import FrameHeader
from tests.golden.samples import SAMPLES
from tests.support.examples import examples
from tests.support.strategies import MESSAGES, fields_of, from_construct, messages, messages_of
from tests.support.tables import table

request_ids = st.integers(0, (1 << 64) - 1)


@table("cls", MESSAGES)
@settings(max_examples=examples(5))
@given(drawn=st.data())
def test_a_message_comes_back_from_its_frame(cls: type[m.Message], drawn: st.DataObject) -> None:
    message, request_id = drawn.draw(messages_of(cls)), drawn.draw(request_ids)

    frame = encode(message, request_id=request_id)
    verify(memoryview(frame))
    header, decoded = decode(frame)

    assert decoded == message
    assert header == (len(frame), cls.type, 0, 0, request_id)


@given(messages(), request_ids)
def test_a_frame_is_what_construct_reads(message: m.Message, request_id: int) -> None:
    frame = encode(message, request_id=request_id)
    header = FrameHeader.parse(frame)

    assert (header.length, header.type, header.request_id) == (len(frame), message.type, request_id)
    body = message.layout.parse(frame[24:])
    values = [getattr(message, name) for name, _ in fields_of(message.layout)]
    assert list(from_construct(message.layout, body)) == values


@table("name", SAMPLES)
def test_every_flipped_bit_of_a_frame_is_found(name: str) -> None:
    """Behaviour 49: every bit flipped in turn; the checksum covers the length too."""
    frame = bytearray(encode(SAMPLES[name], request_id=1))
    for bit in range(8 * len(frame)):
        frame[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ChecksumError):
            verify(memoryview(frame))
        frame[bit // 8] ^= 1 << bit % 8
    verify(memoryview(frame))


@table("name", SAMPLES)
def test_a_frame_cut_anywhere_is_refused(name: str) -> None:
    """Behaviour 49: a frame cut anywhere."""
    frame = encode(SAMPLES[name], request_id=1)
    for size in range(len(frame)):
        with pytest.raises((ChecksumError, CodecError)):
            verify(memoryview(frame)[:size])
        with pytest.raises(CodecError):
            decode(frame[:size])


@given(st.binary(max_size=100), st.integers(0, 255))
def test_noise_with_a_good_header_gives_a_message_or_a_codec_error(body: bytes, frame_type: int) -> None:
    """Behaviour 49: a typed error, whatever is in a body."""
    frame = encode_body(frame_type, body, request_id=1)
    try:
        _, message = decode(frame)
    except CodecError:
        return
    assert message.type == frame_type
    assert encode(message, request_id=1) == frame


@table("frame_type", [0, 8, m.Append.type, m.SequencedAppend.type, 127, 200, 255])
def test_a_type_without_a_message_is_refused(frame_type: int) -> None:
    """Behaviour 49: an unknown type."""
    with pytest.raises(CodecError, match=r"FrameHeader\.type"):
        decode(encode_body(frame_type, b"", request_id=1))


@table(("message", "flags"), [(m.Ping(), 1), (m.Ping(), 128), (SAMPLES["data"], 4)])
def test_unknown_flags_are_refused(message: m.Message, flags: int) -> None:
    with pytest.raises(CodecError, match=r"FrameHeader\.flags"):
        decode(encode(message, flags=flags))


@table(("start", "field"), [(10, "reserved"), (11, "reserved"), (12, "event_count"), (0, "length")])
def test_a_header_that_says_what_it_may_not_is_refused(start: int, field: str) -> None:
    frame = bytearray(encode(m.Ping()))
    frame[start] += 1

    with pytest.raises(CodecError, match=rf"FrameHeader\.{field}"):
        decode(frame)


def test_a_header_is_read_in_place() -> None:
    frame = encode(m.Ping(), request_id=5)

    assert decode_header(b"??" + frame, 2) == (24, 4, 0, 0, 5)
    with pytest.raises(CodecError, match="23 bytes left"):
        decode_header(frame, 1)


@given(st.lists(st.binary(max_size=20), max_size=4), st.integers(0, 3), st.integers(0, (1 << 64) - 1))
def test_data_in_pieces_is_the_same_frame(pieces: list[bytes], flags: int, offset: int) -> None:
    whole = m.Data(segment_id=3, offset=offset, length=9, payload=b"".join(pieces))

    buffers = encode_data(request_id=7, segment_id=3, offset=offset, length=9, flags=flags, pieces=[*pieces])

    assert b"".join(buffers) == encode(whole, request_id=7, flags=flags)
    assert all(lent is piece for lent, piece in zip(buffers[1:], pieces, strict=True))


def test_the_payload_of_data_is_lent() -> None:
    frame = bytearray(encode(m.Data(segment_id=3, offset=1, length=9, payload=b"before")))
    _, message = decode(frame)
    assert isinstance(message, m.Data)

    frame[-6:] = b"after!"

    assert message.payload == b"after!"


def test_a_full_read_reply_fits_a_frame() -> None:
    frame = encode(m.Data(segment_id=3, offset=1, length=9, payload=bytes(READ_SIZE_BYTES_MAX)))

    assert CONTROL_FRAME_SIZE_BYTES_MAX < len(frame) <= FRAME_SIZE_BYTES_MAX


def test_a_frame_that_the_peer_would_refuse_is_not_made() -> None:
    value = bytes(CONTROL_FRAME_SIZE_BYTES_MAX)

    with pytest.raises(CodecError, match=r"Attribute: makes a frame of 1048605 bytes"):
        encode(m.Attribute(1, value))
    with pytest.raises(CodecError, match=r"Data: makes a frame"):
        encode(m.Data(segment_id=1, offset=0, length=0, payload=bytes(FRAME_SIZE_BYTES_MAX)))


def test_a_value_that_does_not_fit_names_message_and_field() -> None:
    with pytest.raises(CodecError, match=r"^Throttle\.retry_after_ms: "):
        encode(m.Throttle(-1, "full"))


@given(
    st.binary(min_size=1, max_size=80),
    st.fixed_dictionaries(
        {"request_id": request_ids, "segment_id": request_ids},
        optional={
            "event_count": st.integers(0, (1 << 32) - 1),
            "writer_number": request_ids,
            "writer_epoch": st.integers(0, (1 << 32) - 1),
            "event_number": request_ids,
            "expected_offset": st.integers(-(1 << 63), (1 << 63) - 1),
        },
    ),
)
def test_an_append_header_is_what_construct_reads(payload: bytes, fields: dict[str, Any]) -> None:
    header = encode_append_header(payload=payload, **fields)
    expected = {"event_count": 1, "writer_number": 0, "writer_epoch": 0, "event_number": 0, "expected_offset": -1}

    verify(memoryview(header + payload))
    parsed = m.AppendHeader.parse(header)
    assert parsed.length == 64 + len(payload)
    assert {name: parsed[name] for name in {**expected, **fields}} == {**expected, **fields}


I64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.binary(min_size=1, max_size=80), request_ids, st.builds(Sequences, I64, I64, I64))
def test_the_header_of_a_sequenced_append_is_what_construct_reads(
    payload: bytes, request_id: int, sequences: Sequences
) -> None:
    header = encode_append_header(request_id=request_id, segment_id=7, payload=payload, sequences=sequences)

    verify(memoryview(header + payload))
    parsed = m.SequencedAppendHeader.parse(header)
    assert (parsed.type, parsed.length, parsed.request_id) == (m.SequencedAppend.type, 88 + len(payload), request_id)
    assert (parsed.first_sequence, parsed.last_sequence, parsed.stored_below) == sequences


@table(
    ("fields", "message"),
    [
        ({"payload": b""}, "payload of 0 bytes"),
        ({"payload": bytes(APPEND_SIZE_BYTES_MAX + 1)}, f"payload of {APPEND_SIZE_BYTES_MAX + 1} bytes"),
        ({"expected_offset": 1 << 63}, "AppendHeader: "),
        ({"segment_id": -1}, "AppendHeader: "),
        ({"event_count": 1 << 32}, "AppendHeader: "),
    ],
)
def test_an_append_that_the_server_would_refuse_is_not_made(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(CodecError, match=message):
        encode_append_header(**{"request_id": 1, "segment_id": 1, "payload": b"x", **fields})


def test_the_largest_append_is_made() -> None:
    payload = bytes(APPEND_SIZE_BYTES_MAX)
    plain = encode_append_header(request_id=1, segment_id=1, payload=payload)
    sequenced = encode_append_header(request_id=1, segment_id=1, payload=payload, sequences=Sequences(0, 0, 0))

    assert decode_header(plain).length == FRAME_SIZE_BYTES_MAX - 24
    assert decode_header(sequenced).length == FRAME_SIZE_BYTES_MAX


@pytest.mark.slow
def test_a_record_of_the_log_may_be_larger_than_a_request() -> None:
    """Requests and replies stay at a mebibyte; a decision about very many segments is one record."""
    count = CONTROL_FRAME_SIZE_BYTES_MAX // 20
    ranges = [m.SegmentRangeRecord(number, number, number) for number in range(count)]
    record = m.StreamScaled(stream_id=1, epoch=1, scaled_us=1, cause="", sealed_ids=[], created=ranges)
    frame = encode(record)
    assert CONTROL_FRAME_SIZE_BYTES_MAX < len(frame) <= RECORD_SIZE_BYTES_MAX
    assert decode(frame)[1] == record
    request = m.ScaleStream("a/b", list(range(count)), [m.KeyRangeRecord(1, 1)] * count)
    with pytest.raises(CodecError, match="above the limit"):
        encode(request)
