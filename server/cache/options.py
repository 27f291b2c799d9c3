"""Options of the cache."""

from dataclasses import dataclass

from millrace.server.errors import ConfigurationError
from millrace.wire.limits import KIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """How much is kept, and how far reads run ahead of sequential readers."""

    budget_bytes: int = 256 * MIB
    """Memory for cached pages. What is being fetched comes on top: at most `fetches_max` pages."""

    page_size_bytes: int = 1 * MIB
    """Size and alignment of a page, the unit of a fetch from tier 2. Large, since a fetch costs a change of threads."""

    protected_share: float = 0.8
    """Share of the budget for pages that were read again; a scan works in the rest."""

    read_ahead_bytes: int = 4 * MIB
    """How far ahead of one sequential reader pages are fetched; 0 turns it off."""

    read_ahead_share: float = 0.25
    """Share of the budget that may hold pages fetched ahead, for all readers, and not read yet."""

    fetches_max: int = 16
    """Fetches that run at once; further ones wait, and nothing more is fetched ahead."""

    readers_max: int = 1024
    """Sequential readers that are remembered; of more, those that read last."""

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigurationError: naming the option.
        """
        if not 4 * KIB <= self.page_size_bytes <= 64 * MIB:
            raise ConfigurationError(
                f"cache.page_size_bytes must be {4 * KIB} to {64 * MIB}, not {self.page_size_bytes}"
            )
        if self.budget_bytes < 4 * self.page_size_bytes:
            raise ConfigurationError(f"cache.budget_bytes must hold four pages, not {self.budget_bytes}")
        if not 0.0 <= self.protected_share <= 0.95:
            raise ConfigurationError(f"cache.protected_share must be 0 to 0.95, not {self.protected_share}")
        if self.read_ahead_bytes < 0:
            raise ConfigurationError(f"cache.read_ahead_bytes must not be negative, not {self.read_ahead_bytes}")
        if not 0.0 <= self.read_ahead_share <= 1.0:
            raise ConfigurationError(f"cache.read_ahead_share must be 0 to 1, not {self.read_ahead_share}")
        if self.fetches_max < 1:
            raise ConfigurationError(f"cache.fetches_max must be at least 1, not {self.fetches_max}")
        if self.readers_max < 1:
            raise ConfigurationError(f"cache.readers_max must be at least 1, not {self.readers_max}")
