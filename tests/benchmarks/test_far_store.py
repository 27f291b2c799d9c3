"""A store at a distance, without the distance."""

import pytest

from benchmarks.far_store import FarStore, clear
from tests.support.object_store import MemoryObjectStore

pytestmark = pytest.mark.asyncio


async def test_puts_and_gets_are_counted_and_pass_through() -> None:
    near = MemoryObjectStore()
    far = FarStore(near, 0.0)
    tag = await far.create("a", [b"on", b"e"])
    assert (await far.get("a")).content == b"one"
    await far.replace("a", b"other", tag=tag)
    assert await far.read("a", offset=1, size=3) == b"the"
    assert await far.size("a") == 5
    assert len(far.put_at_s) == 2
    assert far.gets == 3
    assert [info.key async for page in far.list() for info in page] == ["a"]
    await far.delete(["a"])
    assert not near.objects


async def test_all_of_a_store_is_cleared() -> None:
    store = MemoryObjectStore(page_size_max=2)
    for number in range(5):
        await store.create(f"{number}", [b"content"])
    await clear(store)
    assert not store.objects
