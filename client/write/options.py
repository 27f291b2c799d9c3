"""What a caller may choose for a writer."""

import math
from dataclasses import dataclass
from typing import Final

from millrace.model.compression import Compression, check_installed
from millrace.model.errors import InvalidArgumentError
from millrace.model.limits import APPEND_SIZE_BYTES_MAX
from millrace.wire.limits import KIB, MIB

UNNAMED_DELIVERY_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """Options of a writer.

    Attributes:
        block_size_bytes: a block is sent at this size even while others are in flight.
        in_flight_bytes_max: blocks of this writer that were sent and not yet acked. All writers of a client share one
            connection, which has a bound of its own, `ClientOptions.in_flight_bytes_max`.
        buffer_bytes_max: everything that was written and is not yet durable; beyond it `write` raises BufferFullError.
        drain_high_bytes, drain_low_bytes: `drain` waits above the one until it is below the other.
        delivery_timeout_s: how long blocks are sent again, while none is stored, because the server cannot be reached
            or has no room; then the writer ends with `DeliveryTimeoutError`. `math.inf` is no limit, and so is None
            for a writer with an id; for one without, None is 120 s.

    Raises:
        ValueError: a value that cannot be.
        MissingExtraError: the package of the compression is not installed.
    """

    block_size_bytes: int = 1 * MIB
    in_flight_bytes_max: int = 16 * MIB
    buffer_bytes_max: int = 256 * MIB
    drain_high_bytes: int = 16 * MIB
    drain_low_bytes: int = 8 * MIB
    delivery_timeout_s: float | None = None
    compression: Compression = Compression.NONE

    def __post_init__(self) -> None:
        if not KIB <= self.block_size_bytes <= APPEND_SIZE_BYTES_MAX // 2:
            raise InvalidArgumentError(f"block_size_bytes={self.block_size_bytes} must be 1 KiB to 8 MiB")
        if not 0 < self.drain_low_bytes <= self.drain_high_bytes <= self.buffer_bytes_max:
            raise InvalidArgumentError(
                "0 < drain_low_bytes <= drain_high_bytes <= buffer_bytes_max must hold, not"
                f" 0 < {self.drain_low_bytes} <= {self.drain_high_bytes} <= {self.buffer_bytes_max}"
            )
        if self.in_flight_bytes_max <= 0:
            raise InvalidArgumentError(f"in_flight_bytes_max={self.in_flight_bytes_max} must be above 0")
        if self.delivery_timeout_s is not None and not self.delivery_timeout_s > 0:
            raise InvalidArgumentError(f"delivery_timeout_s={self.delivery_timeout_s} must be above 0, or None")
        check_installed(self.compression)


def delivery_limit_s(timeout_s: float | None, *, is_named: bool) -> float:
    """Return how long a writer sends again, given its option `delivery_timeout_s`."""
    # A named writer can be resumed by its id, so it has no reason to give up by itself.
    return timeout_s if timeout_s is not None else math.inf if is_named else UNNAMED_DELIVERY_TIMEOUT_S
