"""Settings of the feeds that the console serves."""

import re
from dataclasses import dataclass
from typing import Final

from millrace.server.errors import ConfigurationError
from millrace.wire.limits import KIB, MIB

WINDOW_BYTES_MIN: Final = 64 * KIB
_ORIGIN: Final = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s,]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedOptions:
    """Bounds of feeds, and who may read them; checked when made.

    Attributes:
        count_max: feeds at once; further ones are refused with 503.
        window_bytes: what each fetches ahead of its peer, over all segments; at least 64 KiB for each segment.
        keepalive_s: after so long without an event a comment is sent.
        patience_s: a peer that takes nothing of what was sent for so long is cut.
        origins: web pages of these origins may read the answers in a browser: `https://shop.example`, several with
            commas between them, `*` for all; empty = those of no other origin than the console's own.
    """

    count_max: int = 64
    window_bytes: int = 1 * MIB
    keepalive_s: float = 15.0
    patience_s: float = 60.0
    origins: str = ""

    def __post_init__(self) -> None:
        if self.count_max < 0:
            raise ConfigurationError("count_max of feeds must not be below 0")
        if self.window_bytes < WINDOW_BYTES_MIN:
            raise ConfigurationError(f"window_bytes of feeds must be at least {WINDOW_BYTES_MIN}")
        if min(self.keepalive_s, self.patience_s) <= 0:
            raise ConfigurationError("keepalive_s and patience_s of feeds must be above 0")
        for origin in self.origin_list:
            if not _ORIGIN.fullmatch(origin):
                raise ConfigurationError(f"{origin!r} is no origin of web pages; write https://shop.example, or *")

    @property
    def origin_list(self) -> list[str]:
        """The origins, each by itself."""
        return [origin.strip() for origin in self.origins.split(",") if origin.strip()]
