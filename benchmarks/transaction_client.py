"""Events of one stream in transactions, or without, through a blocking socket; blocks are packed before."""

import itertools
import os
from typing import Final

from loadtests.protocol import ProtocolClient, UnexpectedFrameError
from millrace.model.block_packing import pack_block
from millrace.wire import messages as m
from millrace.wire.client_session import Received

SEGMENT_COUNT: Final = 4
EVENT_COUNT: Final = 1_000
"""Events of one transaction, of 100 B."""
_BLOCK_EVENT_COUNT: Final = EVENT_COUNT // SEGMENT_COUNT
_IDS_COUNT: Final = 50_000
_LEASE_MS: Final = 30_000


class TransactionClient:
    """A connection that writes to a stream, which is created if there is none. The client is its own from now on."""

    def __init__(self, client: ProtocolClient, stream: str) -> None:
        # A timeout makes every call poll first, which would be measured.
        client.socket.settimeout(None)
        self._client = client
        self._stream = stream
        self._segments = client.request(m.CreateStream(stream, SEGMENT_COUNT, "")).segments
        opened = client.request(m.OpenWriter("", [], 0))
        self._writer = {"writer_number": opened.writer_number, "writer_epoch": opened.writer_epoch}
        self._block = bytes(pack_block([os.urandom(100) for _ in range(_BLOCK_EVENT_COUNT)]))
        self._ids = itertools.chain.from_iterable(iter(self._reserve, None))
        self._written = 0

    def flush(self, _: int = 0) -> None:
        """Write the events, a block for each segment, and wait until they are durable."""
        for segment in self._segments:
            self._append(segment.segment_id, event_number=self._written + 1)
        self._written += _BLOCK_EVENT_COUNT
        while self._client.in_flight_count:
            self._client.receive_acks()

    def commit(self, _: int = 0) -> None:
        """Begin a transaction, write the same to it and commit it, with no more waits than there must be."""
        client, number = self._client, next(self._ids)
        begun = client.request(
            m.BeginTransaction(number=number, name="", lease_ms=_LEASE_MS, streams=[m.RoutedStream(self._stream, 0, 0)])
        )
        parts = [m.NewPart(next(self._ids), routed_id) for routed_id, _, _ in begun.streams[0].ranges]
        client.request(m.AddParts(number=number, branch=0, parts=parts))
        for part in parts:
            self._append(part.segment_id, event_number=1)
        branches = [m.BranchCount(0, len(parts) * _BLOCK_EVENT_COUNT)]
        request_id = client.send(
            m.CommitTransaction(number=number, name="", branches=branches, drops_others=0, cursors=[])
        )
        while not isinstance(event := client.receive(), Received):
            pass
        if event.request_id != request_id or client.in_flight_count:
            raise UnexpectedFrameError(f"{event} for a commit, with {client.in_flight_count} appends in flight")

    def _append(self, segment_id: int, *, event_number: int) -> None:
        self._client.send_append(
            segment_id, self._block, event_count=_BLOCK_EVENT_COUNT, event_number=event_number, **self._writer
        )

    def _reserve(self) -> range:
        reserved = self._client.request(m.ReserveIds(_IDS_COUNT))
        return range(reserved.first, reserved.first + reserved.count)
