"""Settings of the network side."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from millrace.server.bounds import demand, demand_above_zero, demand_at_least
from millrace.server.host.proxy_protocol import TrustedProxies
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
        connections_count_max: how many clients may be connected; the newest ones above this are refused. One address
            may have as many connections as are free: half of them, if it is the only one.
        unauthenticated_connections_count_max: how many connections may be open that have not sent their first message;
            they do not count as clients. One address may have at most half of them.
        unauthenticated_connections_per_address_count_max: how many of these may come from one address.
        handshake_timeout_s: how long a client may take to send its first message.
        frame_timeout_s: how long a message that has begun may take to arrive.
        keepalive_s: after this time of silence the server asks a client whether it is alive; after the same time again
            it ends the connection.
        write_buffer_bytes_high: when this much waits to be sent to a client, the server reads nothing more from it.
        tasks_count_max: how many requests of one connection are carried out at the same time.
        parked_reads_count_max: how many reads of one connection may wait for new events, subscriptions included.
        request_bytes_max: memory for the requests of all connections: being received, carried out, or waiting.
        reader_bytes_max: memory for all readers together: bytes that were fetched, or sent and not yet received.
        reader_patience_s: when that memory is full, a connection that has received nothing for this time is ended.
        trusted_proxies: addresses or networks, with commas, of proxies that send the header of the PROXY protocol,
            version 1 or 2, to either port. Bounds of an address then count the hosts that use the proxies.
        token: the token that every client must send; empty: no token is needed.
        token_file: the file that holds this token, in place of `token`; read once, at the start.
    """

    connections_count_max: int = 10_000
    unauthenticated_connections_count_max: int = 1_000
    unauthenticated_connections_per_address_count_max: int = 250
    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S
    frame_timeout_s: float = 30.0
    keepalive_s: float = 20.0
    write_buffer_bytes_high: int = 4 * MIB
    tasks_count_max: int = 256
    parked_reads_count_max: int = 4096
    request_bytes_max: int = 256 * MIB
    reader_bytes_max: int = 256 * MIB
    reader_patience_s: float = 5.0
    trusted_proxies: str = ""
    token: str = field(default="", repr=False)
    token_file: Path | None = None

    def __post_init__(self) -> None:
        demand_at_least(
            self, 1, "connections_count_max", "unauthenticated_connections_count_max",
            "unauthenticated_connections_per_address_count_max", "tasks_count_max", "parked_reads_count_max",
            "write_buffer_bytes_high",
        )  # fmt: skip
        demand_above_zero(self, "handshake_timeout_s", "frame_timeout_s", "keepalive_s", "reader_patience_s")
        demand_at_least(self, REQUEST_BYTES_MIN, "request_bytes_max")
        demand_at_least(self, 1 * MIB, "reader_bytes_max")
        try:
            TrustedProxies(self.trusted_proxies)
            are_addresses = True
        except ValueError:
            are_addresses = False
        demand(are_addresses, self, "trusted_proxies", "IP addresses or networks, such as 10.0.0.5, 10.1.0.0/16")
        demand(not (self.token and self.token_file), self, "token_file", "none where front.token is set")

    @property
    def has_token(self) -> bool:
        """Whether clients must send a token."""
        return bool(self.token or self.token_file)
