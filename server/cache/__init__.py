"""The cache of old events: pages of segments that were read from tier 2."""

from .cache import CacheStatistics, Fetch, PageCache, PendingRead
from .options import CacheOptions

__all__ = ["CacheOptions", "CacheStatistics", "Fetch", "PageCache", "PendingRead"]
