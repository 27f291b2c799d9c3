"""Classifies the bytes after the last valid batch of a log.

A log ends in exactly one of four ways, and merging any two of them either loses data or hides damage:

    END       no bytes of this log: the file is full, or the rest is from its earlier use
    ZEROED    the zeros of the preallocated file
    TORN      the remains of a batch whose write did not finish; nothing valid follows, so it was never acknowledged
    CORRUPT   valid batches follow: the unreadable bytes were acknowledged

Everything here is pure: bytes in, classification out.
"""

from enum import Enum
from struct import Struct
from typing import Final

from millrace.wire.schema.log import BATCH_ALIGNMENT_BYTES, BATCH_MAGIC

from .batch import BATCH_HEADER_SIZE_BYTES, SALT_OFFSET, Batch, decode_damaged_batch

_SALT: Final = Struct("<Q")
_MAGIC_BYTES: Final = BATCH_MAGIC.to_bytes(4, "little")


class Ending(Enum):
    """The four endings of a log."""

    END = "end"
    ZEROED = "zeroed"
    TORN = "torn"
    CORRUPT = "corrupt"


def classify_end(data: bytes, offset: int, *, salt: int | None, is_recycled: bool) -> tuple[Ending, int]:
    """Classify the bytes from `offset`, where the last valid batch of a log ends.

    The first row that applies decides. The caller has already ruled out a later batch, which would make it corrupt.

    Returns:
        The ending, and the size of the incomplete batch as far as it is known; 0 unless TORN.
    """
    content_size = _content_size(data, offset)
    if len(data) - offset < BATCH_HEADER_SIZE_BYTES:
        return Ending.END, 0
    if not content_size:
        return Ending.ZEROED, 0
    # In a zeroed file any other bytes are from the unfinished write. In a recycled file, a batch whose header did not
    # arrive cannot be distinguished from the old bytes. It was not acknowledged either way.
    if is_recycled and not is_batch_of(data, offset, salt):
        return Ending.END, 0
    damaged = decode_damaged_batch(memoryview(data), offset, salt)
    return Ending.TORN, min(damaged.size, content_size) if damaged is not None else content_size


def is_batch_of(data: bytes | memoryview, offset: int, salt: int | None) -> bool:
    """Return whether the header of a batch at `offset` would have the salt, if the salt is known."""
    return salt is not None and data[offset + SALT_OFFSET : offset + SALT_OFFSET + _SALT.size] == _SALT.pack(salt)


def find_batch(data: bytes, start: int, *, salt: int | None, sequence_min: int) -> Batch | None:
    """Return the first batch at or after `start` that proves a later write, or None.

    Proof is an intact run table with the salt (with any, if None) and at least that sequence: a table has its own
    checksum over salt and sequence, and only the log knows the salt. Its frames may be damaged.
    """
    needle, distance = (_MAGIC_BYTES, 0) if salt is None else (_SALT.pack(salt), SALT_OFFSET)
    view = memoryview(data)
    position = data.find(needle, start + distance)
    while position >= 0:
        offset = position - distance
        if offset % BATCH_ALIGNMENT_BYTES == 0:
            batch = decode_damaged_batch(view, offset, salt)
            if batch is not None and batch.sequence >= sequence_min:
                return batch
        position = data.find(needle, position + 1)
    return None


def _content_size(data: bytes, offset: int) -> int:
    """Return the number of bytes from `offset` to the zeros that end the data."""
    # rstrip copies at most once and runs at memory speed, unlike any loop over the bytes.
    return len(data[offset:].rstrip(b"\0"))
