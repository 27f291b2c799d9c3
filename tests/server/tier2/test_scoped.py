"""Two scopes over one storage; the contract itself is held in `tests/contracts`."""

import pytest

from millrace.server.errors import ChunkNotFoundError, InvalidArgumentError
from millrace.server.tier2 import ChunkInfo, ScopedStorage
from tests.support.storage import MemoryStorage

NAME = "segments/07/a.chunk"


@pytest.mark.asyncio
async def test_no_scope_sees_or_deletes_what_another_one_published() -> None:
    shared = MemoryStorage()
    first, second = ScopedStorage(shared, "c0001/"), ScopedStorage(shared, "c0002/")

    await first.publish(NAME, [b"one"])
    await second.publish(NAME, [b"three"])
    await second.publish("segments/07/b.chunk", [b"b"])
    await second.delete(NAME)

    assert await first.list("segments/") == [ChunkInfo(NAME, 3)]
    assert await first.read(NAME, offset=0, size=9) == b"one"
    with pytest.raises(ChunkNotFoundError):
        await first.read("segments/07/b.chunk", offset=0, size=1)
    assert [chunk.name for chunk in await shared.list()] == ["c0001/" + NAME, "c0002/segments/07/b.chunk"]


@pytest.mark.asyncio
async def test_closing_a_scope_leaves_the_others_open() -> None:
    shared = MemoryStorage()
    first, second = ScopedStorage(shared, "c0001/"), ScopedStorage(shared, "c0002/")
    await second.publish(NAME, [b"x"])

    await first.close()

    assert await second.list() == [ChunkInfo(NAME, 1)]


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["../c0002/a.chunk", "/a.chunk", "a.chunk/../b.chunk", ""])
async def test_no_name_leads_out_of_a_scope(name: str) -> None:
    scoped = ScopedStorage(MemoryStorage(), "c0001/")
    with pytest.raises(InvalidArgumentError):
        await scoped.delete(name)
