"""The cache of catch-up reads: pages of segments that were read from tier 2, or were just written to it."""

from .cache import CacheStatistics, Fetch, PageCache, PendingRead
from .options import CacheOptions

__all__ = ["CacheOptions", "CacheStatistics", "Fetch", "PageCache", "PendingRead"]
