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
        count_max: how many feeds may be open at the same time; one address may have as many as are free. Further ones
            are refused with 503, unless a client that receives nothing makes room.
        bytes_max: how much memory all feeds may hold together, beside half a MiB for each. A block waits for room; the
            feed whose client has received nothing longest gives its own back, and fetches it again later.
        window_bytes: how much a feed fetches ahead, over all segments of its stream; at least 64 KiB for each segment,
            and at most its share of a quarter of bytes_max.
        keepalive_s: after this time without an event, the server sends a comment.
        patience_s: a client that receives nothing for this time is disconnected; it can resume.
        origins: web pages of these origins may read feeds in a browser: `https://shop.example`, several with commas, or
            `*` for all; empty: only pages of the console's own origin.
    """

    count_max: int = 64
    bytes_max: int = 128 * MIB
    window_bytes: int = 1 * MIB
    keepalive_s: float = 15.0
    patience_s: float = 60.0
    origins: str = ""

    def __post_init__(self) -> None:
        demand_at_least(self, 0, "count_max")
        demand_at_least(self, WINDOW_BYTES_MIN, "window_bytes")
        demand_at_least(self, 1 * MIB, "bytes_max")
        demand_above_zero(self, "keepalive_s", "patience_s")
        are_right = all(_ORIGIN.fullmatch(origin) for origin in self.origin_list)
        demand(are_right, self, "origins", "origins of web pages, such as https://shop.example, or *")

    @property
    def feed_window_bytes(self) -> int:
        """The window of one feed, so that the windows of all feeds leave room for the events that are being sent."""
        share = self.bytes_max // (4 * max(1, self.count_max))
        return max(WINDOW_BYTES_MIN, min(self.window_bytes, share))

    @property
    def origin_list(self) -> list[str]:
        """The origins, each by itself."""
        return [origin.strip() for origin in self.origins.split(",") if origin.strip()]
