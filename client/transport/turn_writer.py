"""Batches the output of a connection: at most two system calls for each turn of the loop.

The first frame of a turn leaves at once, so that a lonely request does not wait; the others leave together at the start
of the next turn, and so does a first one that is said to be followed. Small pieces are joined, large payloads never: a
copy of those costs more than a system call.
"""

import asyncio
from typing import Final

from millrace.model.checksum import Buffer
from millrace.wire.client_session import ClientSession
from millrace.wire.limits import KIB

GATHER_SIZE_BYTES_MAX: Final = 256 * KIB
"""Frames gathered in one turn of the loop are sent at once when they reach this size."""
JOIN_SIZE_BYTES_MAX: Final = 32 * KIB
"""Pieces up to this size are joined before they are sent; a copy is cheaper than a system call."""


class TurnWriter:
    """Empties the outbox of a session into its transport.

    Attributes:
        transport: set before anything is sent.
        sent_bytes: what the transport was given.
    """

    __slots__ = ("_is_closed", "_is_gathering", "_loop", "_session", "sent_bytes", "transport")

    def __init__(self, session: ClientSession) -> None:
        self._loop = asyncio.get_running_loop()
        self._session = session
        self.transport: asyncio.Transport | None = None
        self.sent_bytes = 0
        # Whether the first frame of this turn was sent: what follows waits for `_end_turn`.
        self._is_gathering = False
        self._is_closed = False

    def send(self) -> None:
        """Send what is in the outbox, now or with what follows in this turn."""
        if not self._session.outbox_bytes:
            return
        if not self._is_gathering:
            self._is_gathering = True
            self._loop.call_soon(self._end_turn)
            self._flush()
        elif self._session.outbox_bytes >= GATHER_SIZE_BYTES_MAX:
            self._flush()

    def send_with_next(self) -> None:
        """Send what is in the outbox with what follows in this turn."""
        if not self._is_gathering:
            self._is_gathering = True
            self._loop.call_soon(self._end_turn)

    def close(self) -> None:
        """Send what is in the outbox now, and nothing any more."""
        self._flush()
        self._is_closed = True

    def _end_turn(self) -> None:
        self._is_gathering = False
        self._flush()

    def _flush(self) -> None:
        if self._is_closed or not self._session.outbox_bytes:
            return
        transport = self.transport
        assert transport is not None
        self.sent_bytes += self._session.outbox_bytes
        buffers = self._session.take_outbox(self._loop.time())
        if len(buffers) == 1:
            transport.write(buffers[0])
            return
        small: list[Buffer] = []
        for buffer in buffers:
            if len(buffer) <= JOIN_SIZE_BYTES_MAX:
                small.append(buffer)
                continue
            if small:
                transport.write(b"".join(small))
                small = []
            transport.write(buffer)
        if small:
            transport.write(b"".join(small))
