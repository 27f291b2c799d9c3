"""Classification of the bytes after the last valid batch of a log.

A log ends in exactly one of four ways, and merging any two of them either loses data or hides damage:

    END       no bytes of this log: the file is full, or what follows is from its earlier use
    ZEROED    the zeros of the preallocated file
    TORN      the remains of a batch whose write did not finish; nothing valid follows, so it was never acknowledged
    CORRUPT   valid batches follow: what is unreadable here was acknowledged

Everything here is pure: bytes in, verdict out.
"""

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TailFacts:
    """What is known about the bytes after the last valid batch."""

    # A batch of this log with a later sequence follows, in this file or a later one.
    is_followed: bool
    # Too few bytes are left for a batch header.
    is_full: bool
    # Nothing but zeros is left.
    is_zero: bool
    # The bytes in the place of the next batch have the salt of this file.
    is_ours: bool
    # The file was used before: its old bytes are to be expected.
    is_recycled: bool


@dataclass(frozen=True, slots=True)
class Tail:
    """The verdict on the end of a log file."""

    ending: Ending
    # Where the last valid batch ends.
    offset: int
    # Bytes of the incomplete batch, as far as they can be told; 0 unless TORN.
    torn_bytes: int


def decide_ending(facts: TailFacts) -> Ending:
    """Return the one ending that the facts mean; the first row that applies decides."""
    if facts.is_followed:
        return Ending.CORRUPT
    if facts.is_full:
        return Ending.END
    if facts.is_zero:
        return Ending.ZEROED
    if facts.is_ours:
        return Ending.TORN
    # In a file that was zeros throughout, anything else is from the write under way; in a recycled one, a batch of
    # which not even the header arrived cannot be told from the old bytes. It was not acknowledged either way.
    return Ending.END if facts.is_recycled else Ending.TORN


def classify_tail(data: bytes, offset: int, *, salt: int | None, is_recycled: bool, is_followed: bool) -> Tail:
    """Classify the bytes of a file from `offset`, where its last valid batch ends."""
    rest = memoryview(data)[offset:]
    content_size = _content_size(data, offset)
    facts = TailFacts(
        is_followed=is_followed,
        is_full=len(rest) < BATCH_HEADER_SIZE_BYTES,
        is_zero=content_size == 0,
        is_ours=salt is not None and is_batch_of(data, offset, salt),
        is_recycled=is_recycled,
    )
    ending = decide_ending(facts)
    if ending is not Ending.TORN:
        return Tail(ending, offset, 0)
    damaged = decode_damaged_batch(memoryview(data), offset, salt)
    known_size = damaged.size if damaged is not None else content_size
    return Tail(ending, offset, min(known_size, content_size))


def is_batch_of(data: bytes, offset: int, salt: int) -> bool:
    """Return whether the salt is where the header of a batch at `offset` would have it."""
    return data[offset + SALT_OFFSET : offset + SALT_OFFSET + _SALT.size] == _SALT.pack(salt)


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
