"""Options of a writer."""

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
        block_size_bytes: a block of this size is sent even while others are in flight.
        in_flight_bytes_max: unacknowledged blocks of this writer. All writers of a client share one connection, which
            has a limit of its own, `ClientOptions.in_flight_bytes_max`.
        buffer_bytes_max: all events that are not durable yet; above it `write` raises BufferFullError.
        drain_high_bytes, drain_low_bytes: `drain` waits above the high mark, until the buffer is below the low mark.
        delivery_timeout_s: how long blocks are resent without success, because the server is unreachable or full. Then
            the writer fails with `DeliveryTimeoutError`. `math.inf` is no limit. None is no limit for a writer with an
            id, and 120 s for one without.
        compression: of the blocks.

    Raises:
        ValueError: an invalid value.
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
    """Return the time limit of retries, in seconds, for the option `delivery_timeout_s`."""
    # A program can resume a named writer by its id, so such a writer does not give up by itself.
    return timeout_s if timeout_s is not None else math.inf if is_named else UNNAMED_DELIVERY_TIMEOUT_S
