from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model.block_packing import pack_block
from millrace.model.compression import Compression
from millrace.model.key_range import key_place
from millrace.server.container.state.segment import Segment
from millrace.server.streams.key_sampling import (
    DECOMPRESSED_SIZE_BYTES_MAX,
    EXTENT_SIZE_BYTES_MAX,
    SAMPLES_COUNT_MAX,
    recent_extents,
    recent_keys,
    samples_of,
)
from tests.server.container.extents import extent


def block(*events: tuple[str | None, bytes], **options: Any) -> bytes:
    keys = [key for key, _ in events]
    return bytes(pack_block([value for _, value in events], keys=keys if any(keys) else None, **options))


EVENTS = st.lists(st.tuples(st.none() | st.text(max_size=5), st.binary(max_size=9)), min_size=1, max_size=20)


@given(st.lists(EVENTS, max_size=5), st.booleans())
def test_all_events_are_found_while_they_are_few(blocks: list[list[tuple[str | None, bytes]]], is_timed: bool) -> None:
    options = {"timestamps_us": 5} if is_timed else {}
    data = b"".join(block(*events, **options) for events in blocks)

    assert samples_of(memoryview(data), count_max=256) == [
        (None if key is None or not any(key for key, _ in events) else key_place(key), len(value))
        for events in blocks
        for key, value in events
    ]


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=6), st.integers(1, 300))
def test_of_many_a_few_are_taken_evenly(counts: list[int], count_max: int) -> None:
    data = b"".join(block(*[(f"k{n}", b"v")] * count) for n, count in enumerate(counts))

    samples = samples_of(memoryview(data), count_max=count_max)

    assert 0.5 * min(count_max, sum(counts)) <= len(samples) <= count_max
    share = sum(place == key_place("k0") for place, _ in samples) / len(samples)
    assert share == pytest.approx(counts[0] / sum(counts), abs=2 / len(samples))


def test_what_cannot_be_read_yields_nothing() -> None:
    packed = bytearray(block(*[("key", b"v" * 100)] * 50, compression=Compression.ZSTD))
    packed[60:] = bytes(len(packed) - 60)
    unknown = bytearray(block(*[("key", b"v" * 100)] * 50, compression=Compression.ZSTD))
    unknown[6] = 99
    for data in (b"", b"raw bytes of somebody" * 20, packed, unknown, b"MRBK" + bytes(90)):
        assert samples_of(memoryview(data), count_max=9) == []


@pytest.mark.parametrize("compression", [Compression.ZSTD, Compression.LZ4])
def test_compressed_blocks_are_sampled_like_others(compression: Compression) -> None:
    events = [(f"key-{number % 7}", b"v" * (number % 50)) for number in range(400)]
    packed = block(*events, compression=compression)
    plain = block(*events)
    assert len(packed) < len(plain)
    assert samples_of(memoryview(packed), count_max=100) == samples_of(memoryview(plain), count_max=100)


def test_little_is_decompressed_however_much_there_is() -> None:
    """Behaviour 49: a block that swells to the largest size costs no more than the bound."""
    swelling = block(*[("key", bytes(DECOMPRESSED_SIZE_BYTES_MAX // 4))] * 3, compression=Compression.ZSTD)
    data = swelling + swelling + block(("other", b"v"))
    assert samples_of(memoryview(data), count_max=100) == [
        *[(key_place("key"), DECOMPRESSED_SIZE_BYTES_MAX // 4)] * 3,
        (key_place("other"), 1),
    ]


@given(st.data())
def test_garbage_does_no_harm(data: st.DataObject) -> None:
    """Behaviour 49: a payload is the client's, and may be anything."""
    raw = bytearray(block(("a", b"1"), (None, b"2"), ("c", b"3" * 20)))
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]

    assert len(samples_of(memoryview(raw), count_max=256)) <= 256


def test_the_newest_runs_of_a_tail_are_read() -> None:
    segment = Segment(segment_id=1, name="a/b#0.0", created_us=0)
    offset = 0
    for number in range(9):
        payload = block(*[(f"key-{number}", b"v")] * 200)
        segment.tail.add(extent(offset, payload))
        offset += len(payload)

    samples = recent_keys(recent_extents(segment, 0, merged={}))
    places = {key_place(f"key-{number}") for number in (5, 6, 7, 8)}
    assert {place for place, _ in samples} == places
    assert 100 < len(samples) <= SAMPLES_COUNT_MAX

    assert {place for place, _ in recent_keys(recent_extents(segment, offset - 1, merged={}))} == {key_place("key-8")}
    assert recent_keys(recent_extents(segment, offset, merged={})) == []


def test_a_huge_run_is_left_alone() -> None:
    segment = Segment(segment_id=1, name="a/b#0.0", created_us=0)
    segment.tail.add(extent(0, bytes(EXTENT_SIZE_BYTES_MAX + 1)))
    assert recent_keys(recent_extents(segment, 0, merged={})) == []
