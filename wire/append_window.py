"""The unsettled appends of a client: their limits, and the meaning of acks.

Each append ends in exactly one way:

    sent -> acked      an entry of an APPEND_ACK covers it
    sent -> refused    an ERROR_REPLY has its request id
    sent -> lost       the connection ended first: its outcome is unknown

Acks are cumulative. The entries of a connection's acks cover its appends in the order of their request ids, and contain
only the offset of the first byte of a run: the others follow from the sizes of the payloads, which the sender knows.
The window has two limits: a number of appends, which the server announces in the handshake, and a number of bytes,
headers included, which the client chooses; one append larger than all those bytes is sent alone.
"""

from typing import Any, Final

from .errors import ProtocolError
from .framing import ACK_ENTRY
from .limits import APPEND_HEADER_SIZE_BYTES, FRAME_HEADER_SIZE_BYTES

_ENTRIES: Final = FRAME_HEADER_SIZE_BYTES + 4


class AppendWindow:
    """The appends of one connection in flight, each with a subject of the caller's choice."""

    __slots__ = ("_appends", "_bytes_max", "count_max", "payload_size_max", "size_bytes")

    def __init__(self, *, bytes_max: int) -> None:
        self._appends: dict[int, tuple[Any, int]] = {}
        self._bytes_max = bytes_max
        # Both are announced by the server in the handshake; before it nothing may be sent.
        self.count_max = 0
        self.payload_size_max = 0
        # Bytes of everything in the window, headers included.
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._appends)

    def has_room(self, size: int) -> bool:
        """Return whether an append with a payload of `size` bytes may be sent now."""
        size += self.size_bytes + APPEND_HEADER_SIZE_BYTES
        return not self._appends or (len(self._appends) < self.count_max and size <= self._bytes_max)

    def add(self, request_id: int, subject: Any, size: int) -> None:
        """Record an append that was sent."""
        self._appends[request_id] = (subject, size)
        self.size_bytes += size + APPEND_HEADER_SIZE_BYTES

    def ack(self, frame: memoryview) -> list[tuple[Any, int | None]]:
        """Return the appends that an APPEND_ACK covers, in the order sent, and the offset of each.

        The offset is None for an append that was stored before, if the server no longer knows its offset.

        Raises:
            ProtocolError: the frame covers appends that are not in the window, or has the wrong length.
        """
        # Read in place, without an object for each entry. Duplicates are not distinguished here.
        count = int.from_bytes(frame[FRAME_HEADER_SIZE_BYTES:_ENTRIES], "little")
        if len(frame) != _ENTRIES + count * ACK_ENTRY.size:
            raise ProtocolError(f"APPEND_ACK of {count} entries has {len(frame)} bytes")
        outcomes: list[tuple[Any, int | None]] = []
        # Removed at the end: after a wrong ack all appends are still there, to be failed with the connection.
        acked: set[int] = set()
        acked_bytes = 0
        appends = self._appends
        for first, start, run, _ in ACK_ENTRY.iter_unpack(frame[_ENTRIES:]):
            offset: int | None = start if start >= 0 else None
            for request_id in range(first, first + run):
                append = appends.get(request_id)
                if append is None or request_id in acked:
                    raise ProtocolError(f"ack of an append that is not in flight: id {request_id}")
                acked.add(request_id)
                subject, size = append
                acked_bytes += size + APPEND_HEADER_SIZE_BYTES
                outcomes.append((subject, offset))
                if offset is not None:
                    offset += size
        for request_id in acked:
            del appends[request_id]
        self.size_bytes -= acked_bytes
        return outcomes

    def refuse(self, request_id: int) -> Any | None:
        """Return the append that an error is about, None if it is about something else."""
        append = self._appends.pop(request_id, None)
        if append is None:
            return None
        subject, size = append
        self.size_bytes -= size + APPEND_HEADER_SIZE_BYTES
        return subject

    def clear(self) -> list[Any]:
        """Return everything in the window, in the order sent, and forget it: the connection was lost."""
        subjects = [subject for subject, _ in self._appends.values()]
        self._appends.clear()
        self.size_bytes = 0
        return subjects
