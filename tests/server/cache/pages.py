"""Small caches, and segments of which each place holds what only that place holds."""

import asyncio
from typing import Any

from millrace.server.cache import CacheOptions, Fetch, PageCache
from millrace.server.cache.cache import EXTENT_COST_BYTES

PAGE = 4096


def content(offset: int, size: int) -> bytes:
    """The bytes of every segment: each place holds what only that place holds."""
    start = offset & ~3
    numbers = range(start // 4, (offset + size) // 4 + 1)
    return b"".join([number.to_bytes(4, "little") for number in numbers])[offset - start : offset - start + size]


def cache_of(pages: int = 16, **options: Any) -> PageCache:
    return PageCache(CacheOptions(budget_bytes=pages * (PAGE + EXTENT_COST_BYTES), page_size_bytes=PAGE, **options))


async def read_of(
    cache: PageCache, segment_id: int, offset: int, size: int, fetch: Fetch, *, end: int | None = None
) -> list[memoryview]:
    found = cache.read(segment_id, offset, size, fetch, end=end)
    return found if isinstance(found, list) else await found


async def settled() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)
