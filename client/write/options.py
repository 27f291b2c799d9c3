"""What a caller may choose for a writer."""

from dataclasses import dataclass

from millrace.model.compression import Compression
from millrace.model.limits import APPEND_SIZE_BYTES_MAX
from millrace.wire.limits import KIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """Options of a writer.

    Attributes:
        block_size_bytes: a block is sent at this size even while others are in flight.
        in_flight_bytes_max: blocks of this writer that were sent and not yet acked. All writers of a client share one
            connection, which has a bound of its own, `ClientOptions.in_flight_bytes_max`.
        buffer_bytes_max: everything that was written and is not yet durable; beyond it `write` raises BufferFullError.
        drain_high_bytes, drain_low_bytes: `drain` waits above the one until it is below the other.
        delivery_timeout_s: how long blocks are sent again while the server cannot be reached or has no room.
    """

    block_size_bytes: int = 1 * MIB
    in_flight_bytes_max: int = 16 * MIB
    buffer_bytes_max: int = 256 * MIB
    drain_high_bytes: int = 16 * MIB
    drain_low_bytes: int = 8 * MIB
    delivery_timeout_s: float = 120.0
    compression: Compression = Compression.NONE

    def __post_init__(self) -> None:
        if not KIB <= self.block_size_bytes <= APPEND_SIZE_BYTES_MAX // 2:
            raise ValueError(f"block_size_bytes={self.block_size_bytes} must be 1 KiB to 8 MiB")
        if not 0 < self.drain_low_bytes <= self.drain_high_bytes <= self.buffer_bytes_max:
            raise ValueError("0 < drain_low_bytes <= drain_high_bytes <= buffer_bytes_max must hold")
        if self.in_flight_bytes_max <= 0 or self.delivery_timeout_s <= 0:
            raise ValueError("in_flight_bytes_max and delivery_timeout_s must be above 0")
