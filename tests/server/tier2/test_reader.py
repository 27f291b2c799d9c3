import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.server.errors import ChunkCorruptError, ChunkNotFoundError
from millrace.server.tier2 import ChunkFooter, IndexEntry, open_chunk, read_chunk, verify_chunk
from millrace.server.tier2.layout import SUMMARY_SIZE_BYTES
from tests.server.tier2.chunks import encoded, flipped, published
from tests.support.examples import examples
from tests.support.storage import MemoryStorage
from tests.support.tables import table

PAYLOAD = bytes(range(256)) * 12  # 3072 bytes, 6 pages of 512
INDEX = [IndexEntry(1000 + 512 * i, 10 + i, 1_000_000 * i) for i in range(6)]


async def damaged(data: bytes, name: str) -> tuple[MemoryStorage, ChunkFooter]:
    storage = MemoryStorage()
    await storage.publish(name, [data])
    return storage, await open_chunk(storage, name, len(data))


async def damages(storage: MemoryStorage, name: str, size: int) -> list[int]:
    return [error.offset async for error in verify_chunk(storage, name, size)]


@pytest.mark.asyncio
async def test_any_range_reads_what_was_published() -> None:
    storage = MemoryStorage()
    footer = await published(storage, PAYLOAD, index=INDEX)

    for start, size in [(0, 1), (0, 3072), (511, 2), (512, 512), (1000, 999), (3071, 1), (3000, 5000)]:
        view = await read_chunk(storage, footer, offset=1000 + start, size=size)
        assert view == PAYLOAD[start : start + size]
    assert list(footer.entries()) == INDEX
    assert await damages(storage, footer.name, 96 + 3072 + 40 * 6 + 4 * 6 + 96) == []


@pytest.mark.asyncio
async def test_a_chunk_with_tables_above_one_tail_read_is_opened() -> None:
    storage = MemoryStorage()
    payload = bytes(10_000)
    index = [IndexEntry(1000 + i, 10, i) for i in range(3000)]

    footer = await published(storage, payload, index=index)

    assert list(footer.entries()) == index


@pytest.mark.asyncio
async def test_a_damaged_page_refuses_itself_and_nothing_else() -> None:
    """Behaviour 41: a flipped bit in a chunk: only that range refuses, with file and offset; the rest is served."""
    name, data = encoded([PAYLOAD], index=INDEX)
    data = flipped(data, offset=SUMMARY_SIZE_BYTES + 2 * 512 + 77)
    storage, footer = await damaged(data, name)

    before = await read_chunk(storage, footer, offset=1000, size=len(PAYLOAD))
    with pytest.raises(ChunkCorruptError) as caught:
        await read_chunk(storage, footer, offset=1000 + len(before), size=1)
    after = await read_chunk(storage, footer, offset=1000 + 3 * 512, size=len(PAYLOAD))

    assert before == PAYLOAD[: 2 * 512]
    assert (caught.value.name, caught.value.offset) == (name, SUMMARY_SIZE_BYTES + 2 * 512)
    assert after == PAYLOAD[3 * 512 :]
    assert await damages(storage, name, len(data)) == [SUMMARY_SIZE_BYTES + 2 * 512]


@pytest.mark.asyncio
async def test_a_damaged_footer_is_replaced_by_the_header() -> None:
    name, data = encoded([PAYLOAD], index=INDEX)
    storage, footer = await damaged(flipped(data, offset=len(data) - 3), name)

    assert footer.footer_damaged
    assert await read_chunk(storage, footer, offset=1000, size=5000) == PAYLOAD
    assert await damages(storage, name, len(data)) == [len(data) - SUMMARY_SIZE_BYTES]


@pytest.mark.asyncio
async def test_a_damaged_index_is_told_and_the_payload_served() -> None:
    """Behaviour 41: a flipped bit in an index."""
    name, data = encoded([PAYLOAD], index=INDEX)
    storage, footer = await damaged(flipped(data, offset=SUMMARY_SIZE_BYTES + len(PAYLOAD) + 30), name)

    assert footer.index is None
    assert list(footer.entries()) == []
    assert await read_chunk(storage, footer, offset=1000, size=5000) == PAYLOAD
    assert await damages(storage, name, len(data)) == [SUMMARY_SIZE_BYTES + len(PAYLOAD)]


@pytest.mark.asyncio
async def test_with_both_summaries_damaged_the_chunk_is_refused() -> None:
    name, data = encoded([PAYLOAD])
    data = flipped(flipped(data, offset=len(data) - 3), offset=20)
    storage = MemoryStorage()
    await storage.publish(name, [data])

    with pytest.raises(ChunkCorruptError):
        await open_chunk(storage, name, len(data))
    assert await damages(storage, name, len(data)) == [0]


@settings(max_examples=examples(60))
@given(st.integers(0, 10**9), st.integers(0, 7))
@pytest.mark.asyncio
async def test_no_flipped_bit_is_ever_served(place: int, bit: int) -> None:
    """Behaviour 41: every bit of a chunk is under a checksum; damage refuses at most one page of the payload."""
    name, data = encoded([PAYLOAD], index=INDEX)
    storage, footer = await damaged(flipped(data, offset=place % len(data), bit=bit), name)

    refused = 0
    for page in range(6):
        try:
            view = await read_chunk(storage, footer, offset=1000 + page * 512, size=512)
        except ChunkCorruptError:
            refused += 1
        else:
            assert view == PAYLOAD[page * 512 : (page + 1) * 512]
    assert footer.index is None or list(footer.entries()) == INDEX
    assert refused <= 1
    assert len(await damages(storage, name, len(data))) == 1


@pytest.mark.asyncio
@table("size", [0, 79, 159, 1000, 3327])
async def test_a_chunk_cut_short_is_refused_with_its_end(size: int) -> None:
    name, data = encoded([PAYLOAD], index=INDEX)
    storage = MemoryStorage()
    await storage.publish(name, [data[:size]])

    with pytest.raises(ChunkCorruptError) as caught:
        await open_chunk(storage, name, size)

    assert caught.value.offset == size


@pytest.mark.asyncio
async def test_a_chunk_shorter_than_the_caller_knows_is_refused() -> None:
    name, data = encoded([PAYLOAD], index=INDEX)
    storage = MemoryStorage()
    await storage.publish(name, [data[:2000]])

    with pytest.raises(ChunkCorruptError) as caught:
        await open_chunk(storage, name, len(data))

    assert caught.value.offset == 2000


@pytest.mark.asyncio
async def test_a_deleted_chunk_is_not_found() -> None:
    storage = MemoryStorage()
    footer = await published(storage, PAYLOAD)
    await storage.delete(footer.name)

    with pytest.raises(ChunkNotFoundError):
        await read_chunk(storage, footer, offset=1000, size=1)
