"""Walks a segment of event blocks from header to header, without accessing an event.

    walk = BlockWalk(offset)                        of a block
    while walk.offset < end:
        data = ...                                  up to `walk.read_size_bytes` bytes from `walk.offset` on
        for header in walk.feed(data): ...

Sans-I/O: the client reads the bytes from a server, the server from its memory and tier 2.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from .block_layout import BLOCK_HEADER_SIZE_BYTES, BLOCK_MAGIC, BlockHeader
from .checksum import Buffer
from .errors import BlockCorruptError
from .limits import APPEND_SIZE_BYTES_MAX

WALK_READ_BYTES: Final = 64 << 10
SMALL_BLOCK_BYTES_MAX: Final = 16 << 10
"""After a block up to this size, the walk reads more than one header at once."""

# Every field of the declaration has a fixed size. `millrace.wire.codec` derives the same format, and a test compares.
_FIELDS: Final = tuple(
    (field.name, getattr(field.subcon, "subcon", field.subcon).fmtstr[1:] if field.name != "magic" else "4s")
    for field in BlockHeader.subcons
)
HEADER_STRUCT: Final = struct.Struct("<" + "".join(code for _, code in _FIELDS))
assert HEADER_STRUCT.size == BLOCK_HEADER_SIZE_BYTES


class BlockFields(NamedTuple):
    """The header of a block, as declared in `millrace.model.block_layout`."""

    magic: bytes
    version: int
    flags: int
    compression: int
    reserved: int
    size: int
    event_count: int
    first_event_number: int
    timestamp_us_min: int
    timestamp_us_max: int
    value_size: int
    key_size: int
    columns_size: int
    checksum: int


assert BlockFields._fields == tuple(name for name, _ in _FIELDS)


class PlacedHeader(NamedTuple):
    """The header of a block and the offset of the block in its segment."""

    offset: int
    fields: BlockFields

    @property
    def end(self) -> int:
        """The offset after the block."""
        return self.offset + self.fields.size


def fields_at(data: Buffer, start: int = 0) -> BlockFields:
    """Return the header at `start`; `data` must have `BLOCK_HEADER_SIZE_BYTES` bytes there.

    Raises:
        BlockCorruptError: no block starts there.
    """
    fields = tuple.__new__(BlockFields, HEADER_STRUCT.unpack_from(data, start))  # without the frame of `_make`
    if fields.magic != BLOCK_MAGIC:
        raise BlockCorruptError(f"no event block starts with {fields.magic!r}")
    if not BLOCK_HEADER_SIZE_BYTES < fields.size <= APPEND_SIZE_BYTES_MAX or fields.size % 8:
        raise BlockCorruptError(f"{fields.size} bytes is not the size of an event block")
    if not fields.event_count:
        raise BlockCorruptError("the block has no events")
    return fields


class BlockWalk:
    """Walks from the block at `offset` on.

    Attributes:
        offset: of the next header.
        read_size_bytes: how many bytes to read from there: fewer if blocks are large.
    """

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.read_size_bytes = WALK_READ_BYTES

    def feed(self, data: Buffer) -> Iterator[PlacedHeader]:
        """Yield the headers of the blocks that start in `data`, the bytes of the segment from `offset` on.

        The caller may stop at any block; the walk is then at the next one.

        Raises:
            BlockCorruptError: no block starts at `offset`.
        """
        base = self.offset
        while self.offset - base + BLOCK_HEADER_SIZE_BYTES <= len(data):
            header = PlacedHeader(self.offset, fields_at(data, self.offset - base))
            self.offset = header.end
            self.read_size_bytes = (
                WALK_READ_BYTES if header.fields.size <= SMALL_BLOCK_BYTES_MAX else BLOCK_HEADER_SIZE_BYTES
            )
            yield header
