"""Behaviour 81: a chunk whose content is that of another one is refused, and both are named."""

import asyncio
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.server.errors import ChunkCorruptError, ChunkIdentityError
from millrace.server.tier2 import ChunkId, ChunkRecord, IndexEntry, chunk_name, encode_chunk, open_chunk, verify_chunk
from millrace.server.tier2.layout import SUMMARY_SIZE_BYTES
from tests.server.tier2.chunks import chunk_id, encoded, forged
from tests.support.storage import MemoryStorage
from tests.support.tables import table

PAYLOAD = bytes(range(250)) * 8
INDEX = [IndexEntry(1000, 10, 1), IndexEntry(2000, 15, 2)]


def chunk_of(chunk: ChunkId) -> bytes:
    pieces = encode_chunk(
        chunk,
        [bytes(chunk.length)],
        index=[],
        start_events=10,
        end_events=20,
        end_wall_time_us=5_000_000,
        page_size=512,
    )
    return b"".join(pieces)


async def error_of(name: str, data: bytes, *, size: int = 0, record: ChunkRecord | None = None) -> ChunkCorruptError:
    """Return why a chunk is refused, by those who open it and by `verify`."""
    storage = MemoryStorage()
    await storage.publish(name, [data])
    with pytest.raises(ChunkCorruptError) as caught:
        await open_chunk(storage, name, size or len(data), record=record)
    told = [error async for error in verify_chunk(storage, name, size or len(data), record=record)]
    assert [str(error) for error in told] == [str(caught.value)]
    return caught.value


def record_of(data: bytes, name: str) -> ChunkRecord:
    return ChunkRecord(1000, len(PAYLOAD), name, len(data), 10, 20, 5_000_000)


@pytest.mark.asyncio
@table(
    ("other", "held"),
    [
        (chunk_id(500, segment_id=8), "bytes [1000, 1500) of segment 8 from epoch 2"),
        (chunk_id(500, start_offset=0), "bytes [0, 500) of segment 7 from epoch 2"),
        (chunk_id(500, epoch=1), "bytes [1000, 1500) of segment 7 from epoch 1"),
        (chunk_id(499), "bytes [1000, 1499) of segment 7 from epoch 2"),
        (chunk_id(100_000), "bytes [1000, 101000) of segment 7 from epoch 2"),
    ],
    ids=["segment", "place", "epoch", "shorter", "longer"],
)
async def test_a_chunk_under_the_name_of_another_is_refused(other: ChunkId, held: str) -> None:
    """Behaviour 81: also where the file has another size than the chunk that belongs there."""
    meant = chunk_id(500)

    for size in (0, len(chunk_of(meant))):
        error = await error_of(chunk_name(meant), chunk_of(other), size=size)

        assert isinstance(error, ChunkIdentityError)
        assert (error.found, error.expected) == (held, "bytes [1000, 1500) of segment 7 from epoch 2")
        assert f"{chunk_name(meant)}: the file holds {held}, expected bytes [1000, 1500) of segment 7" in str(error)


@pytest.mark.asyncio
async def test_a_chunk_of_another_server_is_told_by_the_record() -> None:
    """Behaviour 81: two servers may have written the same place under the same epoch; the events and times differ."""
    name, data = encoded([PAYLOAD])
    other = forged(data, end_events=19, end_wall_time_us=4_000_000)

    error = await error_of(name, other, record=record_of(data, name))

    assert isinstance(error, ChunkIdentityError)
    assert (error.found, error.expected) == (
        "end_events 19, end_wall_time_us 4000000",
        "end_events 20, end_wall_time_us 5000000",
    )
    storage = MemoryStorage()
    await storage.publish(name, [data])
    assert (await open_chunk(storage, name, len(data), record=record_of(data, name))).summary.end_events == 20


@pytest.mark.asyncio
@table("fields", [{"page_size": 0}, {"length": 0}, {"start_events": 21}, {"index_count": 2**32 - 1}, {"length": 2**63}])
async def test_a_forged_summary_is_refused(fields: dict[str, int]) -> None:
    """Behaviour 81: whatever it says, no assertion and no other error is reached."""
    name, data = encoded([PAYLOAD])

    error = await error_of(name, forged(data, b"", **fields))

    assert any(reason in str(error) for reason in ("is invalid", "were published", "the file holds"))


@pytest.mark.asyncio
async def test_two_summaries_of_different_chunks_are_told() -> None:
    """Behaviour 81: the file is the start of one chunk and the end of another."""
    name, data = encoded([PAYLOAD])
    other = forged(data, end_wall_time_us=4_000_000)
    storage = MemoryStorage()
    await storage.publish(name, [other[:SUMMARY_SIZE_BYTES] + data[SUMMARY_SIZE_BYTES:]])

    (error,) = [error async for error in verify_chunk(storage, name, len(data))]

    assert "the summary differs from the one at the end" in str(error)


@given(st.lists(st.tuples(st.integers(990, 3010), st.integers(5, 25)), min_size=2, max_size=2))
def test_an_index_of_other_bytes_is_not_used(places: list[tuple[int, int]]) -> None:
    """Behaviour 81: it matches its checksum, but does not ascend, or is not about this payload."""
    name, data = encoded([PAYLOAD], index=INDEX)
    entries = [(offset, events, 0, 0, 0) for offset, events in places]
    other = forged(data, b"".join(struct.pack("<QQqqq", *entry) for entry in entries))

    async def found() -> list[IndexEntry]:
        storage = MemoryStorage()
        await storage.publish(name, [other])
        return [*(await open_chunk(storage, name, len(other))).entries()]

    (first, first_events), (second, second_events) = places
    is_good = first == 1000 < second < 1000 + len(PAYLOAD) and 10 <= first_events <= second_events <= 20
    assert bool(asyncio.run(found())) == is_good
