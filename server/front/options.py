"""Settings of the network side."""

from dataclasses import dataclass, field
from typing import Final

from millrace.server.bounds import demand_above_zero, demand_at_least
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
        strangers_count_max: beside clients, peers that have not finished their first frame and may take their time.
        strangers_per_address_count_max: such peers of one address; as many again are there for moments.
        handshake_timeout_s: how long the first frame may take.
        frame_timeout_s: how long a frame that has begun may take to arrive.
        keepalive_s: silence before a peer is asked for a sign of life, and from there to giving up.
        write_buffer_bytes_high: with so much unsent, a connection is not read any more.
        tasks_count_max: requests of one connection that are carried out at once.
        parked_reads_count_max: reads of one connection that wait at the tail, subscriptions included.
        request_bytes_max: memory of the requests of all connections: being received, carried out, or waiting at a tail.
        reader_bytes_max: memory of all readers together: fetched for them, or sent and not taken yet.
        reader_patience_s: when there is no room for others, a connection that took nothing for this long is ended.
        token: what every client must present; empty: nothing.
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
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        demand_at_least(
            self, 1, "connections_count_max", "strangers_count_max", "strangers_per_address_count_max",
            "tasks_count_max", "parked_reads_count_max", "write_buffer_bytes_high",
        )  # fmt: skip
        demand_above_zero(self, "handshake_timeout_s", "frame_timeout_s", "keepalive_s", "reader_patience_s")
        demand_at_least(self, REQUEST_BYTES_MIN, "request_bytes_max")
        demand_at_least(self, 1 * MIB, "reader_bytes_max")
