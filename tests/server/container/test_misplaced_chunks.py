"""Behaviour 81: files of tier 2 that are sound, and not the ones that belong where they are."""

from dataclasses import replace
from pathlib import Path

import pytest

from millrace.server.app import Server
from millrace.server.container.flush.flusher import Flusher
from millrace.server.errors import ChunkIdentityError, SegmentDamagedError
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.limits import KIB
from tests.server.tier2.chunks import forged
from tests.support.protocol import Peer, RefusedError, code_of
from tests.support.servers import QUIET, server_options
from tests.support.storage import FaultyStorage

SMALL = replace(QUIET, chunk_size_bytes_max=4 * KIB, flush_size_bytes=4 * KIB, chunk_size_bytes_small=2 * KIB)
"""The last chunk of a segment is written again if it is below 2 KiB."""


def flusher(server: Server) -> Flusher:
    assert server._open is not None
    return server._open.flusher


def swap(storage: FaultyStorage, one: str, other: str) -> None:
    """Let two files change places."""
    first, second = storage._chunks[one], storage._chunks[other]
    assert first != second
    storage.replace(one, second)
    storage.replace(other, first)


async def two_segments(server: Server, peer: Peer, *sizes: int) -> tuple[int, int]:
    """Make two segments with chunks of these sizes, all of different bytes."""
    one, other = await peer.create_segment("raw/one"), await peer.create_segment("raw/other")
    for number, size in enumerate(sizes):
        await peer.store(one, bytes([1 + number]) * size)
        await peer.store(other, bytes([101 + number]) * size)
        await flusher(server).flush()
    return one, other


async def refusal(peer: Peer, segment_id: int, offset: int) -> str:
    """Return how a read is refused."""
    with pytest.raises(RefusedError) as caught:
        await peer.read(segment_id, offset)
    assert caught.value.code is ErrorCode.SEGMENT_DAMAGED
    return str(caught.value)


@pytest.mark.asyncio
@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("is_read_before", [False, True], ids=["unread", "read"])
async def test_chunks_that_changed_places_are_refused_and_both_named(
    tmp_path: Path, is_restarted: bool, is_read_before: bool
) -> None:
    """Behaviour 81: of equal size, so that nothing but the identity tells; the rest of both segments is served."""
    storage = FaultyStorage()
    options = server_options(tmp_path, container=SMALL)
    server = Server(options, storage=storage)
    await server.start()
    peer = await Peer.connect(server.address)
    one, other = await two_segments(server, peer, 4 * KIB, 4 * KIB)
    if is_read_before:
        assert server._open is not None
        for chunk in server._open.container.segment(one).chunks:
            await server._open.container.reader.footer(chunk)
    names = storage.names()
    swap(storage, names[0], names[2])
    if is_restarted:
        await peer.close()
        await server.stop()
        server = Server(options, storage=storage)
        await server.start()
        peer = await Peer.connect(server.address)

    text = await refusal(peer, one, 0)
    assert f"[0, 4096) of segment {one} " in text
    assert f"[0, 4096) of segment {other} " in text
    assert names[0].removeprefix("c0000/") in text
    assert await code_of(peer.read(other, 100)) is ErrorCode.SEGMENT_DAMAGED
    assert await peer.read_all(one, start=4096) == bytes([2]) * 4096
    assert await peer.read_all(other, start=4096) == bytes([102]) * 4096
    assert await peer.store(one, b"more") == [8192]
    swap(storage, names[0], names[2])
    assert await peer.read_all(other) == bytes([101]) * 4096 + bytes([102]) * 4096
    await peer.close()
    await server.stop()


@pytest.mark.asyncio
@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("wrong", ["another segment", "another place", "an older epoch", "a forged index"])
async def test_a_flush_does_not_copy_a_chunk_that_is_not_the_one_it_should_be(
    tmp_path: Path, is_restarted: bool, wrong: str
) -> None:
    """Behaviour 81: a small last chunk is written again with what follows, and would get good checksums by that."""
    storage = FaultyStorage()
    options = server_options(tmp_path, container=SMALL)
    server = Server(options, storage=storage)
    await server.start()
    peer = await Peer.connect(server.address)
    one, _ = await two_segments(server, peer, 4 * KIB, KIB)
    small = storage.names()[1]
    data = storage._chunks[small]
    storage.replace(
        small,
        {
            "another segment": storage._chunks[storage.names()[3]],
            "another place": forged(data, start_offset=0),
            "an older epoch": forged(data, container_epoch=7),
            "a forged index": forged(data, bytes(40)),
        }[wrong],
    )
    if is_restarted:
        await peer.close()
        await server.stop()
        server = Server(options, storage=storage)
        await server.start()
        peer = await Peer.connect(server.address)

    await peer.store(one, b"what follows")
    await flusher(server).flush()

    assert server._open is not None
    chunks = server._open.container.segment(one).chunks
    if wrong == "a forged index":
        assert await peer.read_all(one, start=4096) == bytes([2]) * 1024 + b"what follows"
    else:
        assert [chunk.start_offset for chunk in chunks] == [0, 4096, 5120]
        assert "the file holds" in await refusal(peer, one, 4096)
        assert await peer.read_all(one, start=5120) == b"what follows"
    assert bytes((await peer.read(one, 0, size_max=4096)).payload) == bytes([1]) * 4096
    assert server._fatal is None
    assert not server.health()
    await peer.close()
    await server.stop()


@pytest.mark.asyncio
async def test_a_merge_does_not_copy_a_chunk_that_is_not_the_one_it_should_be(tmp_path: Path) -> None:
    """Behaviour 81: the bytes of a merged segment are read and published for the other one."""
    storage = FaultyStorage()
    async with (
        Server(server_options(tmp_path, container=SMALL), storage=storage) as server,
        await Peer.connect(server.address) as peer,
    ):
        one, other = await two_segments(server, peer, 4 * KIB)
        swap(storage, *storage.names())
        await peer.ask(m.SealSegment(other), m.SegmentInfo)
        await peer.ask(m.MergeSegment(target_id=one, source_id=other), m.SegmentInfo)

        with pytest.raises(SegmentDamagedError, match=f"of segment {one} from epoch 1 where .* of segment {other} "):
            await flusher(server).flush()

        assert f"of segment {other} " in await refusal(peer, one, 4096)
        assert server._fatal is None


@pytest.mark.asyncio
async def test_a_search_by_event_time_does_not_use_the_index_of_another_chunk(tmp_path: Path) -> None:
    """Behaviour 81: and the sparse index of a segment never takes its entries over."""
    storage = FaultyStorage()
    async with (
        Server(server_options(tmp_path, container=SMALL), storage=storage) as server,
        await Peer.connect(server.address) as peer,
    ):
        one, _ = await two_segments(server, peer, 4 * KIB, 4 * KIB)
        names = storage.names()
        swap(storage, names[0], names[1])
        assert server._open is not None
        container = server._open.container
        with pytest.raises(ChunkIdentityError):
            await container.reader.footer(container.segment(one).chunks[0])

        await peer.ask(m.GetIndex(segment_id=one, start=0, end=8192, spacing_bytes=1, count_max=10), m.Index)
        found = await peer.ask(m.Seek(one, 0), m.Index)
        assert [entry.offset for entry in found.entries] == [0]
        container.segment(one).index.check()
        assert {*container.segment(one).index.columns()[0]} <= {0, 4096}
