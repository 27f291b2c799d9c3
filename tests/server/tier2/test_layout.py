import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model.checksum import Buffer, crc32c
from millrace.server.errors import ChunkCorruptError
from millrace.server.tier2.event_times import ANY_TIMES
from millrace.server.tier2.layout import (
    SUMMARY_SIZE_BYTES,
    ChunkId,
    IndexEntry,
    chunk_name,
    decode_footer,
    decode_summary,
    encode_chunk,
    parse_chunk_name,
    segment_prefix,
)
from millrace.server.tier2.storage import check_chunk_name, check_chunk_prefix
from tests.server.tier2.chunks import chunk_id, encoded, flipped
from tests.support.tables import table
from tests.wire.schema.test_chunk import example

CHUNK_IDS = st.builds(
    ChunkId,
    segment_id=st.integers(0, 2**64 - 1),
    start_offset=st.integers(0, 2**64 - 1),
    length=st.integers(1, 10**12 - 1),
    container_epoch=st.integers(0, 2**32 - 1),
)


@given(CHUNK_IDS)
def test_a_name_says_what_the_chunk_holds(chunk: ChunkId) -> None:
    name = chunk_name(chunk)

    assert check_chunk_name(name) == name
    assert parse_chunk_name(name) == chunk
    assert name.startswith(check_chunk_prefix(segment_prefix(chunk.segment_id)))


@given(CHUNK_IDS, CHUNK_IDS)
def test_names_of_one_segment_sort_by_start_offset(first: ChunkId, second: ChunkId) -> None:
    second = ChunkId(
        segment_id=first.segment_id,
        start_offset=second.start_offset,
        length=second.length,
        container_epoch=second.container_epoch,
    )

    if first.start_offset < second.start_offset:
        assert chunk_name(first) < chunk_name(second)


@table(
    "name",
    [
        "",
        "segments",
        chunk_name(chunk_id(5)).upper(),
        chunk_name(chunk_id(5)) + "\n",
        chunk_name(chunk_id(5)).replace("segments/07", "segments/08"),
        chunk_name(chunk_id(5)).replace("-000000000005-", "-٠٠٠٠٠٠٠٠٠٠٠٥-"),
        "other/" + chunk_name(chunk_id(5)),
    ],
)
def test_a_foreign_name_is_not_parsed(name: str) -> None:
    assert parse_chunk_name(name) is None


def test_a_chunk_is_the_example_of_the_format() -> None:
    chunk = ChunkId(segment_id=7, start_offset=100, length=5, container_epoch=2)

    pieces = encode_chunk(
        chunk,
        [b"hel", b"lo"],
        index=[IndexEntry(100, 3, 1_000_000, *ANY_TIMES)],
        start_events=3,
        end_events=4,
        end_wall_time_us=1_000_000,
        page_size=65536,
    )

    assert b"".join(pieces) == example()


def test_the_payload_is_passed_through_not_copied() -> None:
    payload: list[Buffer] = [bytes(700), memoryview(bytearray(900))]

    pieces = encode_chunk(
        chunk_id(1600), payload, index=[], start_events=0, end_events=0, end_wall_time_us=0, page_size=512
    )

    assert pieces[1] is payload[0]
    assert pieces[2] is payload[1]


@given(
    st.lists(st.binary(max_size=1500), min_size=1, max_size=8).filter(any),
    st.sampled_from([512, 1000, 4096]),
    st.lists(st.integers(0, 2**40), max_size=20, unique=True),
)
def test_a_footer_gives_back_what_was_encoded(payload: list[bytes], page_size: int, walls: list[int]) -> None:
    content = b"".join(payload)
    index = [IndexEntry(1000 + i, 10 + i // 2, wall) for i, wall in enumerate(sorted(walls)) if i < len(content)]

    name, data = encoded(payload, page_size=page_size, index=index)
    summary = decode_summary(data[-SUMMARY_SIZE_BYTES:], name=name, offset=len(data) - SUMMARY_SIZE_BYTES)
    footer = decode_footer(data, summary, name=name)

    summary = footer.summary
    assert (summary.segment_id, summary.start_offset, summary.length, summary.container_epoch) == (
        7,
        1000,
        len(content),
        2,
    )
    assert (summary.start_events, summary.end_events, summary.end_wall_time_us) == (10, 20, 5_000_000)
    assert summary.end_offset == 1000 + len(content)
    assert list(footer.entries()) == index
    pages = [content[at : at + page_size] for at in range(0, len(content), page_size)]
    assert [footer.page_checksum(page) for page in range(len(pages))] == [crc32c(page) for page in pages]
    assert data[SUMMARY_SIZE_BYTES : SUMMARY_SIZE_BYTES + len(content)] == content


@given(st.integers(0, SUMMARY_SIZE_BYTES - 1), st.integers(0, 7))
def test_every_flipped_bit_of_a_summary_is_found(offset: int, bit: int) -> None:
    """Behaviour 41: a flipped bit in an index or a length field is detected."""
    name, data = encoded([bytes(1000)])

    with pytest.raises(ChunkCorruptError) as caught:
        decode_summary(flipped(data[:SUMMARY_SIZE_BYTES], offset=offset, bit=bit), name=name, offset=0)

    assert (caught.value.name, caught.value.offset) == (name, 0)


@table("size", [0, 1, SUMMARY_SIZE_BYTES - 1])
def test_a_summary_cut_short_is_an_error(size: int) -> None:
    name, data = encoded([bytes(1000)])

    with pytest.raises(ChunkCorruptError):
        decode_summary(data[:size], name=name, offset=0)


@table(
    "name", ["", "/a.chunk", "a//b.chunk", "../a.chunk", "a/../b.chunk", "a/.chunk", "a", "a.chunk/", "a.chunk\n",
             "a\0.chunk", "ä.chunk", "A.chunk", "-a.chunk", "a.b.chunk", "a" * 200 + ".chunk", "a\\b.chunk"]
)  # fmt: skip
def test_a_name_that_could_leave_its_folder_is_refused(name: str) -> None:
    """Behaviour 52: names never become paths; refused by one rule in one place."""
    with pytest.raises(Exception, match="not a name of a chunk") as caught:
        check_chunk_name(name)

    assert type(caught.value).__name__ == "InvalidArgumentError"


@table("prefix", ["/", "..", "a//", "a/../", ".", "a.chunk", "A", "a\n"])
def test_a_prefix_that_no_name_starts_with_is_refused(prefix: str) -> None:
    with pytest.raises(Exception, match="not a prefix"):
        check_chunk_prefix(prefix)
