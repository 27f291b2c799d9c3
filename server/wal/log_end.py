"""Classification of the bytes after the last valid batch of a log.

A log ends in exactly one of four ways, and merging any two of them either loses data or hides damage:

    END       no bytes of this log: the file is full, or what follows is from its earlier use
    ZEROED    the zeros of the preallocated file
    TORN      the remains of a batch whose write did not finish; nothing valid follows, so it was never acknowledged
    CORRUPT   valid batches follow: what is unreadable here was acknowledged

Everything here is pure: bytes in, verdict out.
"""

from enum import Enum
from struct import Struct
from typing import Final

from millrace.wire.schema.log import BATCH_ALIGNMENT_BYTES, BATCH_MAGIC

from .batch import BATCH_HEADER_SIZE_BYTES, SALT_OFFSET, Batch, decode_damaged_batch

_SALT: Final = Struct("<Q")
_MAGIC_BYTES: Final = BATCH_MAGIC.to_bytes(4, "little")


class Ending(Enum):
    """The four ends of a log."""

    END = "end"
    ZEROED = "zeroed"
    TORN = "torn"
    CORRUPT = "corrupt"


def classify_end(data: bytes, offset: int, *, salt: int | None, is_recycled: bool) -> tuple[Ending, int]:
    """Classify the bytes from `offset`, where the last valid batch of a log ends.

    The first row that applies decides. Corrupt is what is followed by a later batch, which the caller has looked for.

    Returns:
        The ending, and the bytes of the incomplete batch as far as they can be told; 0 unless TORN.
    """
    content_size = _content_size(data, offset)
    if len(data) - offset < BATCH_HEADER_SIZE_BYTES:
        return Ending.END, 0
    if not content_size:
        return Ending.ZEROED, 0
    # In a file that was zeros throughout, anything else is from the write under way; in a recycled one, a batch of
    # which not even the header arrived cannot be told from the old bytes. It was not acknowledged either way.
    if is_recycled and not is_batch_of(data, offset, salt):
        return Ending.END, 0
    damaged = decode_damaged_batch(memoryview(data), offset, salt)
    return Ending.TORN, min(damaged.size, content_size) if damaged is not None else content_size


def is_batch_of(data: bytes | memoryview, offset: int, salt: int | None) -> bool:
    """Return whether the salt, if it is known, is where the header of a batch at `offset` would have it."""
    return salt is not None and data[offset + SALT_OFFSET : offset + SALT_OFFSET + _SALT.size] == _SALT.pack(salt)


def find_batch(data: bytes, start: int, *, salt: int | None, sequence_min: int) -> Batch | None:
    """Return the first batch at or after `start` that is proof of a later write, or None.

    Proof is an intact run table of the salt (of any, if None) with at least that sequence: a table has a checksum of
    its own over salt and sequence, and only the log knows the salt. Its frames may be damaged.
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
    """Return how many bytes from `offset` on there are before the zeros that end the data."""
    # rstrip copies at most once and runs at memory speed, unlike any loop over the bytes.
    return len(data[offset:].rstrip(b"\0"))
