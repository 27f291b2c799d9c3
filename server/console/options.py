"""Settings of the feeds that the console serves."""

import re
from dataclasses import dataclass
from typing import Final

from millrace.server.bounds import demand, demand_above_zero, demand_at_least
from millrace.wire.limits import KIB, MIB

WINDOW_BYTES_MIN: Final = 64 * KIB
_ORIGIN: Final = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s,]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedOptions:
    """Bounds of feeds, and who may read them; checked when made.

    Attributes:
        count_max: feeds that may be open at once; further ones are refused with 503.
        window_bytes: what a feed fetches ahead of its peer, over all segments; each has at least 64 KiB.
        keepalive_s: after so long without an event a comment is sent.
        patience_s: a peer that takes nothing of what was sent for so long is cut; it can resume.
        origins: web pages of these origins may read feeds in a browser: `https://shop.example`, several with commas
            between them, `*` for all; empty: those of no other origin than the console's own.
    """

    count_max: int = 64
    window_bytes: int = 1 * MIB
    keepalive_s: float = 15.0
    patience_s: float = 60.0
    origins: str = ""

    def __post_init__(self) -> None:
        demand_at_least(self, 0, "count_max")
        demand_at_least(self, WINDOW_BYTES_MIN, "window_bytes")
        demand_above_zero(self, "keepalive_s", "patience_s")
        are_right = all(_ORIGIN.fullmatch(origin) for origin in self.origin_list)
        demand(are_right, self, "origins", "origins of web pages, such as https://shop.example, or *")

    @property
    def origin_list(self) -> list[str]:
        """The origins, each by itself."""
        return [origin.strip() for origin in self.origins.split(",") if origin.strip()]
