"""Options of tier 2."""

from dataclasses import dataclass

from millrace.server.bounds import demand
from millrace.wire.limits import KIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier2Options:
    """How chunks are laid out and how their storage is driven; checked when made.

    Attributes:
        page_size_bytes: how many bytes of a chunk share a checksum; if one bit flips, this many bytes cannot be read.
        threads: how many chunks are read and written at the same time; others wait.
    """

    page_size_bytes: int = 64 * KIB
    threads: int = 4

    def __post_init__(self) -> None:
        demand(512 <= self.page_size_bytes <= 16 * MIB, self, "page_size_bytes", "512 B to 16 MiB")
        demand(1 <= self.threads <= 256, self, "threads", "1 to 256")
