"""Events of every shape, and blocks that a stranger made."""

from hypothesis import strategies as st

from millrace.model.block_packing import pack_block
from millrace.model.checksum import crc32c
from millrace.model.compression import Compression

KEYS = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
EVENTS = st.lists(st.tuples(st.binary(max_size=40), KEYS, st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=30)
COMPRESSIONS = st.sampled_from(Compression)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
HEADERS = st.dictionaries(st.integers(0, 29), st.dictionaries(NAMES, st.binary(max_size=9), min_size=1, max_size=4))


def resealed(data: bytearray) -> bytearray:
    """The block with a checksum that fits, as a stranger could make it."""
    data[52:56] = crc32c(data[56:], crc32c(data[:52])).to_bytes(4, "little")
    return data


@st.composite
def strangers_blocks(draw: st.DrawFn) -> bytearray:
    """Blocks with one byte changed and a right checksum."""
    data = pack_block(
        [b"abc" * 20, b"", b"x"],
        keys=["k", None, "l"],
        timestamps_us=[1, 2, 3],
        headers={0: {"a": b"1", "b": b""}, 2: {"a": b"22"}},
        compression=draw(COMPRESSIONS),
    )
    place = draw(st.integers(0, len(data) - 1))
    if place < 8 or place >= 12:  # its size says where a block ends; a segment is walked by it
        data[place] = draw(st.integers(0, 255))
    return resealed(data)
