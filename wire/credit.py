"""Credit of a subscription: how far the server may push, seen from the receiver.

A reader has a window of memory. It begins at the first byte that was not consumed, so the server may push up to
`consumed + window`. An item larger than the window would never arrive: `require` extends the limit to its end. Both
only ever raise the limit, so granted credit is never revoked. (Like flow control by absolute offsets in QUIC, RFC 9000
section 4.1; the frames carry differences.)

Grants are gathered until they are worth a frame, a quarter of the window, unless required bytes wait for them.
"""

from typing import Final

GRANTS_PER_WINDOW: Final = 4


class ReceiveWindow:
    """The offset of a segment up to which the server may push.

    Attributes:
        limit: the offset up to which it may push.
        granted: the offset up to which the server was granted credit.
    """

    __slots__ = ("_size_bytes", "granted", "limit")

    def __init__(self, *, start: int, size_bytes: int) -> None:
        assert size_bytes > 0
        self._size_bytes = size_bytes
        self.limit = start + size_bytes
        self.granted = start

    def subscribe(self, offset: int) -> int:
        """Return the credit of a new subscription from `offset` on; the grants of the previous one are void."""
        self.granted = max(self.limit, offset)
        return self.granted - offset

    def consume(self, offset: int) -> int:
        """Begin the window at `offset`; return the credit to grant now, 0 if it is not worth a frame yet."""
        self.limit = max(self.limit, offset + self._size_bytes)
        if (self.limit - self.granted) * GRANTS_PER_WINDOW < self._size_bytes:
            return 0
        return self._grant()

    def require(self, offset: int) -> int:
        """Allow the server to push up to `offset` at least; return the credit to grant now."""
        if offset <= self.granted:
            return 0
        self.limit = max(self.limit, offset)
        return self._grant()

    def _grant(self) -> int:
        credit, self.granted = self.limit - self.granted, self.limit
        assert credit > 0
        return credit
