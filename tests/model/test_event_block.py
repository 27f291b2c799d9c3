import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.model import block_layout as schema
from millrace.model.block_packing import checked_headers, pack_block, size_of_single
from millrace.model.compression import Compression
from millrace.model.errors import BlockCorruptError, EventTooLargeError, InvalidArgumentError
from millrace.model.event_block import EventBlock, unpack_block
from millrace.model.limits import (
    EVENT_SIZE_BYTES_MAX,
    HEADERS_COUNT_MAX,
    HEADERS_SIZE_BYTES_MAX,
    ROUTING_KEY_SIZE_BYTES_MAX,
)
from tests.support.event_blocks import COMPRESSIONS, EVENTS, HEADERS, NAMES, resealed, strangers_blocks
from tests.support.examples import examples
from tests.support.tables import table


def example() -> bytes:
    """The block in the docstring of the format."""
    assert schema.__doc__ is not None
    text = schema.__doc__.partition("Example:")[2].partition(":\n")[2]
    return bytes.fromhex(re.sub(r"\s", "", text))


def rows(block: EventBlock) -> list[tuple[bytes, str | None, int | None]]:
    return [(event.value, event.key, event.timestamp_us) for event in block.events(segment_id=1, offset=0)]


def test_the_example_in_the_docstring_is_the_block_it_describes() -> None:
    data = example()

    block = unpack_block(data)

    assert rows(block) == [(b"hi", "k", 1_000_000), (b"yo!", None, 1_000_001)]
    assert block.fields.first_event_number == 7
    assert block.headers() == [{"a": b"1"}, None]
    packed = pack_block(
        [b"hi", b"yo!"],
        keys=["k", None],
        timestamps_us=[1_000_000, 1_000_001],
        headers={0: {"a": b"1"}},
        first_event_number=7,
    )
    assert packed == data
    header = schema.BlockHeader.parse(data)
    assert (header.size, header.event_count, header.timestamp_us_max) == (len(data), 2, 1_000_001)


@given(events=EVENTS, compression=COMPRESSIONS, number=st.integers(0, 2**64 - 1))
def test_what_was_packed_is_unpacked(
    events: list[tuple[bytes, str | None, int]], compression: Compression, number: int
) -> None:
    values, keys, times = (list(column) for column in zip(*events, strict=True))

    data = pack_block(values, keys=keys, timestamps_us=times, first_event_number=number, compression=compression)
    block = unpack_block(data)

    assert rows(block) == events
    assert len(data) % 8 == 0
    assert block.fields.size == len(data)
    assert (block.fields.first_event_number, block.fields.timestamp_us_min, block.fields.timestamp_us_max) == (
        number,
        min(times),
        max(times),
    )


@given(events=EVENTS, headers=HEADERS, compression=COMPRESSIONS)
def test_headers_come_back(
    events: list[tuple[bytes, str | None, int]], headers: dict[int, dict[str, bytes]], compression: Compression
) -> None:
    values, keys, times = (list(column) for column in zip(*events, strict=True))
    headers = {index: each for index, each in headers.items() if index < len(values)}
    data = pack_block(values, keys=keys, timestamps_us=times, headers=headers, compression=compression)
    block = unpack_block(data)

    expected = [headers.get(index, {}) for index in range(len(values))]
    assert rows(block) == events
    assert [event.headers for event in block.events(segment_id=1, offset=0)] == expected
    assert len(data) % 8 == 0


def test_a_block_without_headers_costs_nothing_for_them() -> None:
    assert pack_block([b"a", b"b"], headers={}) == pack_block([b"a", b"b"])
    assert size_of_single(1, key_size=None) == len(pack_block([b"a"], timestamps_us=1))
    headers = {"n": b"value"}
    assert size_of_single(1, key_size=1, headers=headers) == len(
        pack_block([b"a"], keys="k", timestamps_us=1, headers={0: headers})
    )


@given(st.dictionaries(NAMES, st.binary(max_size=9), max_size=9))
def test_headers_are_copied_and_measured(headers: dict[str, bytes]) -> None:
    copy, size = checked_headers(headers)

    assert copy == headers
    assert copy is not headers
    assert size == sum(len(name.encode()) + len(value) for name, value in headers.items())


def test_headers_above_the_limits_are_refused() -> None:
    most = {str(number): b"" for number in range(HEADERS_COUNT_MAX)}
    assert checked_headers(most)[0] == most
    assert checked_headers({"a": bytes(HEADERS_SIZE_BYTES_MAX - 1)})[1] == HEADERS_SIZE_BYTES_MAX

    with pytest.raises(EventTooLargeError, match="at most 64 headers"):
        checked_headers({**most, "one more": b""})
    with pytest.raises(EventTooLargeError, match="at most 65536 bytes"):
        checked_headers({"a": bytes(HEADERS_SIZE_BYTES_MAX)})
    with pytest.raises(InvalidArgumentError, match="UTF-8"):
        checked_headers({"\ud800": b""})
    for wrong in ({"a": "text"}, {5: b"a"}, "text", [("a", b"b")]):
        with pytest.raises(TypeError):
            checked_headers(wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_columns_that_were_not_given_are_not_stored() -> None:
    block = unpack_block(pack_block([b"a", b"b"]))

    assert rows(block) == [(b"a", None, None), (b"b", None, None)]
    assert block.fields.size == 56 + 16 + 8


def test_one_key_and_one_timestamp_serve_all_events() -> None:
    block = unpack_block(pack_block([b"a", b"b"], keys="é", timestamps_us=np.array([3, 4])))

    assert rows(block) == [(b"a", "é", 3), (b"b", "é", 4)]
    assert unpack_block(pack_block([b"a"], timestamps_us=-5)).fields.timestamp_us_min == -5


def test_the_first_event_at_or_after_a_time_is_found() -> None:
    block = unpack_block(pack_block([b""] * 4, timestamps_us=[5, 3, 9, 7]))

    assert [block.first_at_or_after(time) for time in (0, 5, 6, 9, 10)] == [0, 0, 2, 2, None]
    assert unpack_block(pack_block([b""])).first_at_or_after(0) is None
    assert [block.last_before(time) for time in (3, 4, 7, 8)] == [None, 1, 1, 3]
    assert unpack_block(pack_block([b""])).last_before(10) is None


@table("compression", Compression)
def test_every_flipped_bit_is_noticed(compression: Compression) -> None:
    """Behaviour 49: every bit flipped in turn is a typed error."""
    data = pack_block(
        [b"abc" * 20, b""], keys=["k", None], timestamps_us=[1, 2], headers={1: {"h": b"x"}}, compression=compression
    )
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            with pytest.raises(BlockCorruptError):
                unpack_block(flipped)


def test_every_truncation_is_noticed() -> None:
    """Behaviour 49: a block cut anywhere is a typed error."""
    data = pack_block([b"abc", b""], keys=["k", None], timestamps_us=[1, 2])
    for size in range(len(data)):
        with pytest.raises(BlockCorruptError):
            unpack_block(data[:size])


@settings(max_examples=examples(500))
@given(strangers_blocks())
def test_a_strangers_block_with_a_right_checksum_is_read_or_refused(data: bytearray) -> None:
    try:
        rows(unpack_block(data))
    except BlockCorruptError:
        pass


@given(st.binary(max_size=200))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(BlockCorruptError):
        unpack_block(data)


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    """A compressed frame that names another size than the header is refused on the frame's own word."""
    data = pack_block([b"\0" * 1_000_000], compression=Compression.ZSTD)
    data[48:52] = (8 + 8).to_bytes(4, "little")
    data[40:44] = (1).to_bytes(4, "little")

    with pytest.raises(BlockCorruptError, match="zstd frame"):
        unpack_block(resealed(data))


def test_what_cannot_be_compressed_is_stored_as_it_is() -> None:
    data = pack_block([b"a"], compression=Compression.ZSTD)

    assert data == pack_block([b"a"])


def test_sizes_above_the_limits_are_refused() -> None:
    """Behaviour 8: one byte more is refused before it is sent."""
    largest = bytes(EVENT_SIZE_BYTES_MAX)

    assert unpack_block(pack_block([largest], timestamps_us=1)).fields.event_count == 1
    with pytest.raises(EventTooLargeError):
        pack_block([largest + b"x"])
    with pytest.raises(EventTooLargeError):
        pack_block([largest, largest])
    with pytest.raises(EventTooLargeError):
        pack_block([b""], keys="k" * (ROUTING_KEY_SIZE_BYTES_MAX + 1))


@table(
    "wrong",
    [
        {"values": []},
        {"values": [b"a"], "keys": ["a", "b"]},
        {"values": [b"a"], "timestamps_us": [1, 2]},
        {"values": [b"a"], "timestamps_us": 2**63},
        {"values": [b"a"], "timestamps_us": [2**63]},
    ],
)
def test_arguments_that_do_not_fit_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        pack_block(**wrong)  # type: ignore[arg-type]  # wrong on purpose


@table("value", ["text", 5, np.zeros(4, dtype=np.int32).data, None])
def test_values_that_are_not_bytes_are_refused(value: object) -> None:
    with pytest.raises(TypeError):
        pack_block([b"good", value])  # type: ignore[list-item]  # wrong on purpose
