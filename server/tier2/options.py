"""Options of tier 2."""

from dataclasses import dataclass

from millrace.server.errors import ConfigurationError
from millrace.wire.limits import KIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier2Options:
    """How chunks are laid out and how their storage is driven."""

    page_size_bytes: int = 64 * KIB
    """Payload bytes under one page checksum: the least that one flipped bit refuses."""

    threads: int = 4
    """Storage operations that may run at once; further ones wait."""

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigurationError: naming the option.
        """
        if not 512 <= self.page_size_bytes <= 16 * MIB:
            raise ConfigurationError(f"tier2.page_size_bytes must be 512 to {16 * MIB}, not {self.page_size_bytes}")
        if not 1 <= self.threads <= 256:
            raise ConfigurationError(f"tier2.threads must be 1 to 256, not {self.threads}")
