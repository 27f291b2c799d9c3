"""Settings of the network side."""

from dataclasses import dataclass

from millrace.server.errors import ConfigurationError
from millrace.wire.limits import HANDSHAKE_TIMEOUT_S, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontOptions:
    """Bounds of connections; checked when made.

    Attributes:
        connections_count_max: further ones are shed, the newest first.
        handshake_timeout_s: how long HELLO may take.
        frame_timeout_s: how long a frame that has begun may take to arrive.
        keepalive_s: quiet time before a PING, and from there to closing the connection.
        write_buffer_bytes_high: with that much unsent, a connection is not read any more.
        tasks_count_max: requests of one connection that are carried out at once.
        parked_reads_count_max: reads of one connection that wait at the tail, subscriptions included.
        token: what HELLO must carry; empty = anyone.
    """

    connections_count_max: int = 10_000
    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S
    frame_timeout_s: float = 30.0
    keepalive_s: float = 20.0
    write_buffer_bytes_high: int = 4 * MIB
    tasks_count_max: int = 256
    parked_reads_count_max: int = 4096
    token: str = ""

    def __post_init__(self) -> None:
        if min(self.connections_count_max, self.tasks_count_max, self.parked_reads_count_max) < 1:
            raise ConfigurationError("counts of connections, tasks and parked reads must be above 0")
        if min(self.handshake_timeout_s, self.frame_timeout_s, self.keepalive_s) <= 0:
            raise ConfigurationError("timeouts of connections must be above 0")
        if self.write_buffer_bytes_high < 1:
            raise ConfigurationError("write_buffer_bytes_high must be above 0")
