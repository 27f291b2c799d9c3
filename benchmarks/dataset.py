"""Data for the rows that read: written before, and not measured."""

from typing import Final

from loadtests.protocol import ProtocolClient
from millrace.wire import messages as m

from .append_ring import AppendRing
from .server import MillraceServer

_PIECE_SIZE_BYTES: Final = 1 << 20
_OUTSTANDING: Final = 4


def fill_segment(server: MillraceServer, name: str, size: int) -> int:
    """Append `size` bytes, a multiple of 1 MiB, to a new segment; return its id."""
    count = size // _PIECE_SIZE_BYTES
    assert count * _PIECE_SIZE_BYTES == size
    with ProtocolClient(server.address, timeout_s=60.0) as client:
        segment_id = client.create_segment(name)
        ring = AppendRing(segment_id, payload_size=_PIECE_SIZE_BYTES, count=_OUTSTANDING)
        acked = 0
        for index in range(count):
            place = index % ring.count
            if index and place == 0:
                ring.advance()
            client.socket.sendall(ring.frames[place * ring.frame_size : (place + 1) * ring.frame_size])
            while index + 1 - acked >= _OUTSTANDING or (index + 1 == count and acked < count):
                _, message = client.receive()
                assert isinstance(message, m.AppendAck), message
                acked += sum(entry.count for entry in message.entries)
    return segment_id
