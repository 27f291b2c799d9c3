"""What is told of transactions, by the loop itself: after the acks, once it is durable, and not before its readers."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio

from millrace.server.app import Server
from millrace.server.front.options import FrontOptions
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.framing import encode
from millrace.wire.limits import KIB
from tests.support.files import MemoryFileSystem
from tests.support.pipelines import Pipeline
from tests.support.protocol import Peer, Stored, read_request
from tests.support.servers import QUIET, server_options
from tests.support.transactions import create_stream
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.both_loops]

REPLIES_MAX = 4
NO_SUCH_ID = 1 << 40


@dataclass
class Scene:
    """A server whose disk may stall, and a peer with a stream of two segments."""

    server: Server
    files: MemoryFileSystem
    peer: Peer
    segments: list[int]


@pytest_asyncio.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    files = MemoryFileSystem()
    options = server_options(tmp_path, front=FrontOptions(tasks_count_max=REPLIES_MAX))
    server = Server(options, files=files)
    await server.start()
    try:
        async with await Peer.connect(server.address) as peer:
            yield Scene(server, files, peer, await create_stream(peer, "a/b", 2))
    finally:
        files.resume()
        await server.stop()


async def test_acks_come_before_the_reply_to_the_commit(scene: Scene) -> None:
    pipeline = await Pipeline.open(scene.peer)
    pipeline.whole("a/b", scene.segments, b"one", b"two")
    await pipeline.send()
    requests, appends = pipeline._requests, pipeline._appends

    await scene.peer.reply(requests[-1], m.TransactionReply)

    assert [scene.peer.outcomes[each] for each in appends] == [Stored(0, False), Stored(3, False)] * 2


async def test_who_waits_at_the_tail_gets_the_events_before_the_commit_is_told(scene: Scene) -> None:
    """Behaviour 28."""
    pipeline = await Pipeline.open(scene.peer)
    parked = await scene.peer.start(read_request(scene.segments[1], 0, wait_ms=60_000))
    pipeline.whole("a/b", scene.segments, b"event")
    await pipeline.send()
    commit = pipeline._requests[-1]

    await scene.peer.reply(commit, m.TransactionReply)

    found = scene.peer.replies[parked]
    assert isinstance(found, m.Data)
    assert bytes(found.payload) == b"event"


async def test_nothing_is_told_before_it_is_durable(scene: Scene) -> None:
    pipeline = await Pipeline.open(scene.peer)
    scene.files.stall(folder="wal")
    pipeline.whole("a/b", scene.segments, b"event")
    await pipeline.send()
    await asyncio.to_thread(scene.files.stalled.wait)

    await scene.peer.ask(m.ListStreams("", "", 10), m.StreamList)

    assert (scene.peer.replies, scene.peer.outcomes) == ({}, {})
    scene.files.resume()
    assert (await pipeline.told()).names() == ["TransactionReply", "Done", "TransactionReply"]


async def test_what_is_decided_is_told_before_a_draining_server_ends(scene: Scene) -> None:
    """Behaviour 48."""
    pipeline = await Pipeline.open(scene.peer)
    scene.files.stall(folder="wal")
    number = pipeline.begin("a/b")
    await pipeline.send()
    await asyncio.to_thread(scene.files.stalled.wait)
    stopping = asyncio.create_task(scene.server.stop())
    await asyncio.sleep(0)
    scene.files.resume()

    (begun,) = (await pipeline.told()).replies

    assert isinstance(begun, m.TransactionReply)
    assert begun.number == number
    await stopping


async def test_who_does_not_wait_for_replies_is_read_up_to_a_number_of_them(scene: Scene) -> None:
    """What waits for the disk is bounded for each connection."""
    pipeline = await Pipeline.open(scene.peer)
    scene.files.stall(folder="wal")
    for _ in range(REPLIES_MAX + 3):
        pipeline.begin("a/b")
    await pipeline.send()
    container = scene.server.opened.container
    await until(lambda: container.in_flight.replies_count == REPLIES_MAX)

    await scene.peer.send(encode(m.Ping(), request_id=0))

    with pytest.raises(TimeoutError):
        await scene.peer.receive(timeout_s=0.1)
    assert container.in_flight.replies_count == REPLIES_MAX
    scene.files.resume()
    assert (await pipeline.told()).names() == ["TransactionReply"] * (REPLIES_MAX + 3)


async def test_who_wants_no_reply_is_told_of_the_commit_alone(scene: Scene) -> None:
    pipeline = await Pipeline.open(scene.peer)
    pipeline.wants_replies = False
    pipeline.whole("a/b", scene.segments, b"one", b"two")

    told = await pipeline.told()
    await scene.peer.ask(m.Ping(), m.Pong)

    assert told.names() == ["TransactionReply"]
    assert told.outcomes == [Stored(0, False), Stored(3, False)] * 2
    assert scene.peer.replies == {}, "nothing else came"
    assert scene.server._request_memory.held_bytes == 0


async def test_what_is_refused_without_a_reply_refuses_what_follows(scene: Scene) -> None:
    pipeline = await Pipeline.open(scene.peer)
    pipeline.wants_replies = False
    pipeline.whole("no/stream", scene.segments, b"lost")
    number, failed = pipeline.begin("a/b"), scene.server.counters.requests_failed_total
    (part,) = pipeline.parts(number, [NO_SUCH_ID])
    pipeline.append(part, b"lost")
    pipeline.commit(number, (0, 1))

    told = await pipeline.told()
    await scene.peer.ask(m.Ping(), m.Pong)

    assert told.names() == ["TRANSACTION_UNKNOWN", "BRANCHES_DIFFER"]
    assert told.outcomes == [ErrorCode.SEGMENT_NOT_FOUND] * 3
    assert scene.peer.replies == {}
    assert scene.server.counters.requests_failed_total - failed == 8, "what is not told is counted, too"


async def test_what_waits_to_be_decided_tells_nobody_who_wants_no_reply(scene: Scene) -> None:
    """A stream that is about to be there: the beginning waits until it is, and what follows waits for that."""
    pipeline = await Pipeline.open(scene.peer)
    pipeline.wants_replies = False
    scene.files.stall(folder="wal")
    pipeline.ask(m.CreateStream("a/c", 1, ""))
    pipeline.begin("a/c")
    number = pipeline.begin("a/b")
    pipeline.commit(number)
    await pipeline.send()
    await asyncio.to_thread(scene.files.stalled.wait)
    scene.files.resume()

    told = await pipeline.told()
    await scene.peer.ask(m.Ping(), m.Pong)

    assert told.names() == ["StreamInfo", "TransactionReply"]
    assert scene.peer.replies == {}
    assert len(scene.server.opened.container.state.open_transactions) == 1


async def test_who_wants_no_reply_is_read_until_too_much_waits_for_the_log(tmp_path: Path) -> None:
    """Behaviour 51: as of appends, since no number of replies bounds it."""
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    files, count = MemoryFileSystem(), 200
    container = replace(QUIET, queue_size_bytes_high=64 * KIB, queue_size_bytes_low=32 * KIB)
    server = Server(server_options(tmp_path, container=container), files=files)
    await server.start()
    try:
        async with await Peer.connect(server.address) as peer:
            await create_stream(peer, "a/b", 1)
            pipeline = await Pipeline.open(peer)
            pipeline.wants_replies = False
            files.stall(folder="wal")
            for _ in range(count):
                number = pipeline.begin("a/b")
            pipeline.commit(number)
            await pipeline.send()
            waiting = server.opened.container.in_flight
            await until(lambda: server.counters.throttled_total)

            with pytest.raises(TimeoutError):
                await peer.receive(timeout_s=0.1)

            assert [each.reason.endswith("wait for the log") for each in peer.throttles] == [True]
            told_by = server.statistics()
            assert told_by["server"].throttle_reason.endswith("wait for the log")
            assert told_by["front"].throttled_last == peer.throttles[0].reason
            assert 50 < len(waiting) < 70
            files.resume()
            assert (await pipeline.told()).names() == ["TransactionReply"]
            assert server.statistics()["server"].throttle_reason == ""
            assert len(server.opened.container.state.open_transactions) == count - 1
    finally:
        files.resume()
        await server.stop()
