"""Data for the rows that read: written before, and not measured."""

import os
from typing import Final

from loadtests.protocol import ProtocolClient

from .server import MillraceServer

_PIECE_SIZE_BYTES: Final = 1 << 20
_OUTSTANDING: Final = 4


def fill_segment(server: MillraceServer, name: str, size: int) -> int:
    """Append `size` bytes, a multiple of 1 MiB, to a new segment; return its id."""
    count = size // _PIECE_SIZE_BYTES
    assert count * _PIECE_SIZE_BYTES == size
    piece = os.urandom(_PIECE_SIZE_BYTES)
    with ProtocolClient(server.address, timeout_s=60.0) as client:
        segment_id = client.create_segment(name)
        for _ in range(count):
            client.send_append(segment_id, piece)
            if client.in_flight_count >= _OUTSTANDING:
                client.receive_acks()
        while client.in_flight_count:
            client.receive_acks()
    return segment_id
