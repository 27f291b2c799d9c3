from collections.abc import AsyncIterator

import pytest

from millrace.server.console.name_search import search_names
from tests.support.tables import table

NAMES = [f"plant/sensor-{number}" for number in range(5)] + ["shop/Orders"]


async def above(after: str | None) -> AsyncIterator[str]:
    for name in NAMES:
        if name > (after or ""):
            yield name


@table(("count_max", "scanned_count_max"), [(1, 100), (2, 100), (100, 1), (100, 2), (2, 3), (100, 6)])
@table("contains", ["", "ORDERS", "sensor", "r-3", "nothing"])
@pytest.mark.asyncio
async def test_pages_of_any_size_have_each_name_once(contains: str, count_max: int, scanned_count_max: int) -> None:
    found: list[str] = []
    after: str | None = ""
    for _ in range(len(NAMES) + 1):
        page, after = await search_names(
            above(after), contains=contains, count_max=count_max, scanned_count_max=scanned_count_max
        )
        assert len(page) <= count_max
        found += page
        if after is None:
            break
    assert after is None
    assert found == [name for name in NAMES if contains.lower() in name.lower()]


@pytest.mark.asyncio
async def test_so_many_names_are_looked_at_and_no_more() -> None:
    names = above("")
    assert await search_names(names, contains="orders", count_max=9, scanned_count_max=3) == ([], "plant/sensor-2")
    assert [name async for name in names] == NAMES[4:]
