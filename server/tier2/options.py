"""Options of tier 2."""

from dataclasses import dataclass

from millrace.server.bounds import demand
from millrace.wire.limits import KIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier2Options:
    """How chunks are laid out and how their storage is driven; checked when made.

    Attributes:
        page_size_bytes: bytes under one page checksum: the least that one flipped bit refuses.
        threads: reads and writes of chunks that run at once; further ones wait.
    """

    page_size_bytes: int = 64 * KIB
    threads: int = 4

    def __post_init__(self) -> None:
        demand(512 <= self.page_size_bytes <= 16 * MIB, self, "page_size_bytes", "512 B to 16 MiB")
        demand(1 <= self.threads <= 256, self, "threads", "1 to 256")
