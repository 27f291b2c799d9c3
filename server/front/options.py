"""Settings of the network side."""

from dataclasses import dataclass
from typing import Final

from millrace.server.errors import ConfigurationError
from millrace.wire.limits import FRAME_SIZE_BYTES_MAX, HANDSHAKE_TIMEOUT_S, MIB
from millrace.wire.receive_buffer import BUFFER_SIZE_BYTES_IDLE, held_bytes
from millrace.wire.server_session import REQUEST_HELD_BYTES_MAX

REQUEST_BYTES_MIN: Final = 64 * MIB
"""The largest frame, and the largest request, fit into the usual share of it."""
assert held_bytes(FRAME_SIZE_BYTES_MAX + BUFFER_SIZE_BYTES_IDLE) < REQUEST_BYTES_MIN // 4 * 3
assert REQUEST_HELD_BYTES_MAX < REQUEST_BYTES_MIN // 4 * 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontOptions:
    """Bounds of connections; checked when made.

    Attributes:
        connections_count_max: clients; further ones are shed, the newest first.
        strangers_count_max: besides them, peers that have not finished their HELLO and may take their time.
        strangers_per_address_count_max: so many of these may have one address; as many again are there for moments.
        handshake_timeout_s: how long HELLO may take.
        frame_timeout_s: how long a frame that has begun may take to arrive.
        keepalive_s: quiet time before a PING, and from there to closing the connection.
        write_buffer_bytes_high: with that much unsent, a connection is not read any more.
        tasks_count_max: requests of one connection that are carried out at once.
        parked_reads_count_max: reads of one connection that wait at the tail, subscriptions included.
        request_bytes_max: what the requests of all connections hold: being received, carried out, or waiting at a tail.
        reader_bytes_max: what all readers together hold: fetched for them, or sent and not taken yet.
        reader_patience_s: when there is no room for others, a connection that took nothing for this long is ended.
        token: what HELLO must carry; empty = anyone.
    """

    connections_count_max: int = 10_000
    strangers_count_max: int = 1_000
    strangers_per_address_count_max: int = 250
    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S
    frame_timeout_s: float = 30.0
    keepalive_s: float = 20.0
    write_buffer_bytes_high: int = 4 * MIB
    tasks_count_max: int = 256
    parked_reads_count_max: int = 4096
    request_bytes_max: int = 256 * MIB
    reader_bytes_max: int = 256 * MIB
    reader_patience_s: float = 5.0
    token: str = ""

    def __post_init__(self) -> None:
        counts = (
            self.connections_count_max,
            self.strangers_count_max,
            self.strangers_per_address_count_max,
            self.tasks_count_max,
            self.parked_reads_count_max,
        )
        if min(counts) < 1:
            raise ConfigurationError("counts of connections, strangers, tasks and parked reads must be above 0")
        if min(self.handshake_timeout_s, self.frame_timeout_s, self.keepalive_s, self.reader_patience_s) <= 0:
            raise ConfigurationError("timeouts of connections must be above 0")
        if self.request_bytes_max < REQUEST_BYTES_MIN:
            raise ConfigurationError(f"request_bytes_max must be at least {REQUEST_BYTES_MIN} bytes")
        if self.reader_bytes_max < 1 * MIB:
            raise ConfigurationError("reader_bytes_max must be at least 1 MiB")
        if self.write_buffer_bytes_high < 1:
            raise ConfigurationError("write_buffer_bytes_high must be above 0")
