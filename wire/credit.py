"""Credit of a subscription: how far the server may push, seen from the side that receives.

A reader has a window of memory. It begins at the first byte that was not consumed, so the server may push up to
`consumed + window`. Something larger than the window would never come: `require` extends the limit to its end. Both
only ever move the limit up, so credit that was given is never taken back. (As flow control by absolute offsets in QUIC,
RFC 9000 section 4.1; the frames carry differences.)

Grants are gathered until they are worth a frame, a quarter of the window, unless what is required waits for them.
"""

from typing import Final

GRANTS_PER_WINDOW: Final = 4


class ReceiveWindow:
    """Up to which offset of a segment the server may push.

    Attributes:
        limit: the offset up to which it may.
        granted: the offset up to which it was told so.
    """

    __slots__ = ("_size_bytes", "granted", "limit")

    def __init__(self, *, start: int, size_bytes: int) -> None:
        assert size_bytes > 0
        self._size_bytes = size_bytes
        self.limit = start + size_bytes
        self.granted = start

    def subscribe(self, offset: int) -> int:
        """Return the credit of a new subscription from `offset` on; what the one before was granted has ended."""
        self.granted = max(self.limit, offset)
        return self.granted - offset

    def consume(self, offset: int) -> int:
        """Let the window begin at `offset`; return the credit to grant now, 0 if it is not worth a frame yet."""
        self.limit = max(self.limit, offset + self._size_bytes)
        if (self.limit - self.granted) * GRANTS_PER_WINDOW < self._size_bytes:
            return 0
        return self._grant()

    def require(self, offset: int) -> int:
        """Let the server push up to `offset` at least; return the credit to grant now."""
        if offset <= self.granted:
            return 0
        self.limit = max(self.limit, offset)
        return self._grant()

    def _grant(self) -> int:
        credit, self.granted = self.limit - self.granted, self.limit
        assert credit > 0
        return credit
