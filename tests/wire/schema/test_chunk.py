import re

from hypothesis import given
from hypothesis import strategies as st

from millrace.model.checksum import crc32c
from millrace.wire.codec import Codec
from millrace.wire.schema import chunk
from millrace.wire.schema.chunk import ChunkIndexEntry, ChunkSummary, PageChecksum

UNSIGNED_32 = st.integers(0, 2**32 - 1)
UNSIGNED_64 = st.integers(0, 2**64 - 1)
SIGNED_64 = st.integers(-(2**63), 2**63 - 1)


def example() -> bytes:
    """The chunk in the docstring of the format."""
    assert chunk.__doc__ is not None
    text = chunk.__doc__.partition("Example:")[2].partition("\n")[2]
    return bytes.fromhex(re.sub(r"\s", "", text))


def test_the_example_in_the_docstring_is_the_chunk_it_describes() -> None:
    data = example()
    summary = ChunkSummary.parse(data)

    assert (summary.segment_id, summary.container_epoch, summary.start_offset, summary.length) == (7, 2, 100, 5)
    assert (summary.start_events, summary.end_events, summary.end_wall_time_us) == (3, 4, 1_000_000)
    assert (summary.page_size, summary.index_count) == (65536, 1)
    assert data[-96:] == data[:96]
    assert crc32c(data[:92]) == summary.checksum
    assert data[96:101] == b"hello"
    entry = ChunkIndexEntry.parse(data[101:141])
    assert (entry.offset, entry.events, entry.wall_time_us) == (100, 3, 1_000_000)
    assert crc32c(data[101:141]) == summary.index_checksum
    assert PageChecksum.parse(data[141:145]).checksum == crc32c(b"hello")
    assert len(data) == 96 + 5 + 40 + 4 + 96


def test_sizes_are_those_in_the_docstring() -> None:
    assert (ChunkSummary.sizeof(), ChunkIndexEntry.sizeof(), PageChecksum.sizeof()) == (96, 40, 4)


@given(st.tuples(*[UNSIGNED_32] * 2, *[UNSIGNED_64] * 5, *[UNSIGNED_32] * 2, *[SIGNED_64] * 3, UNSIGNED_32))
def test_the_derived_codec_equals_the_declaration(values: tuple[int, ...]) -> None:
    codec = Codec(ChunkSummary, name="ChunkSummary")

    data = codec.pack(*values)

    assert data == ChunkSummary.build(dict(zip(codec.names, values, strict=True)))
    assert codec.unpack(data) == values
