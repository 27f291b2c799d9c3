"""Limits of names, keys, events and appends, which both ends of the wire enforce."""

from typing import Final

EVENT_SIZE_BYTES_MAX: Final = 8 << 20
APPEND_SIZE_BYTES_MAX: Final = 16 << 20
"""The largest payload of one append; the frame is larger by its header."""
WRITER_ID_SIZE_BYTES_MAX: Final = 255
TRANSACTION_NAME_SIZE_BYTES_MAX: Final = 255
PRODUCER_PART_SIZE_BYTES_MAX: Final = 255
FINGERPRINT_SIZE_BYTES_MAX: Final = 1024
"""Of the holder, and of the run, of a producer."""
ROUTING_KEY_SIZE_BYTES_MAX: Final = 64 << 10
HEADERS_COUNT_MAX: Final = 64
HEADERS_SIZE_BYTES_MAX: Final = 64 << 10
"""Of the names, in UTF-8, and values of the headers of one event."""
SEGMENTS_PER_STREAM_MAX: Final = 4096

assert APPEND_SIZE_BYTES_MAX >= EVENT_SIZE_BYTES_MAX + (1 << 20), "a block of one largest event must fit an append"
