"""Sizes, versions and time limits of the protocol."""

from typing import Final

from millrace.model.limits import APPEND_SIZE_BYTES_MAX

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

PROTOCOL_VERSION_MIN: Final = 1
PROTOCOL_VERSION_MAX: Final = 1

DATA_PORT: Final = 9240
CONSOLE_PORT: Final = 9241

FRAME_HEADER_SIZE_BYTES: Final = 24
HELLO_FRAME_SIZE_BYTES_MAX: Final = 16 * KIB
"""The largest first frame of a connection: an unauthenticated peer gets no more memory than this."""
SESSION_ID_SIZE_BYTES: Final = 16
APPEND_HEADER_SIZE_BYTES: Final = 64
SEQUENCED_APPEND_HEADER_SIZE_BYTES: Final = APPEND_HEADER_SIZE_BYTES + 8 + 8 + 8
FRAME_SIZE_BYTES_MAX: Final = SEQUENCED_APPEND_HEADER_SIZE_BYTES + APPEND_SIZE_BYTES_MAX
CONTROL_FRAME_SIZE_BYTES_MAX: Final = 1 * MIB
"""The largest frame that is neither an append nor a reply with data."""
RECORD_SIZE_BYTES_MAX: Final = 16 * MIB
"""The largest decision record in the log; records never travel on the wire."""

EVENT_NUMBER_MAX: Final = (1 << 63) - 1
"""The largest event number of a writer, which also fits a database of signed numbers."""
EVENT_COUNT_MAX: Final = (1 << 63) - 1
"""The most events that a segment counts, for the same reason."""
RUN_EVENT_COUNT_MAX: Final = (1 << 32) - 1
"""The most events of appends that the log enters as one run."""

READ_SIZE_BYTES_MAX: Final = 8 * MIB
"""The most payload bytes of one read reply or one push."""

READ_WAIT_S_MAX: Final = 60.0
APPENDS_IN_FLIGHT_MAX: Final = 65536
"""Appends of one connection that may wait for their ack."""

NAME_SIZE_BYTES_MAX: Final = 255
LIST_PAGE_COUNT_MAX: Final = 1000
HANDSHAKE_TIMEOUT_S: Final = 5.0
EMPTY_LEASE_S_MAX: Final = 300.0
"""The longest lease of an unnamed transaction without parts: it contains nothing that could be lost."""
UNREAD_PING_S: Final = 5.0
"""Maximum interval between frames of an end that does not read; half of a client's silence limit must be longer."""

assert READ_SIZE_BYTES_MAX + KIB <= FRAME_SIZE_BYTES_MAX, "a full read reply must fit a frame"
assert CONTROL_FRAME_SIZE_BYTES_MAX <= RECORD_SIZE_BYTES_MAX <= FRAME_SIZE_BYTES_MAX
assert HELLO_FRAME_SIZE_BYTES_MAX <= CONTROL_FRAME_SIZE_BYTES_MAX <= FRAME_SIZE_BYTES_MAX
