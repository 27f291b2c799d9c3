"""One append at a time: the loop itself writes it, the ack leaves first, and nobody notices the difference."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio

from millrace.server.app import Server
from millrace.wire import messages as m
from millrace.wire.framing import encode
from millrace.wire.limits import KIB
from tests.support.protocol import Peer
from tests.support.servers import SMALL_WAL, server_options
from tests.support.waiting import until
from tests.support.watched_files import WatchedFiles

pytestmark = [pytest.mark.asyncio, pytest.mark.both_loops]


@dataclass
class Scene:
    """A server that writes lone runs in the loop, and a peer of it with a segment."""

    server: Server
    files: WatchedFiles
    peer: Peer
    segment_id: int

    async def asleep(self) -> None:
        """Wait until the log thread has nothing to do, and forget the syncs so far."""
        writer = self.server.opened.container.log._writer  # type: ignore[attr-defined]
        await until(lambda: writer._is_idle)
        self.files.taken()


@pytest_asyncio.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    files = WatchedFiles()
    wal = replace(SMALL_WAL, lone_size_bytes_max=KIB)
    async with (
        # The clock of the files: a sync that is slow on a busy machine would make the log thread write the next ones.
        Server(server_options(tmp_path, wal=wal), clock=files.clock, files=files) as server,
        await Peer.connect(server.address) as peer,
    ):
        made = Scene(server, files, peer, await peer.create_segment("raw/a"))
        await made.asleep()
        yield made


async def test_the_appends_of_one_peer_are_written_in_the_loop(scene: Scene) -> None:
    for number in range(5):
        assert await scene.peer.store(scene.segment_id, b"x") == [number]
    assert scene.files.taken() == [True] * 5


async def test_what_is_acknowledged_is_read_by_the_next_request(scene: Scene) -> None:
    """The ack leaves before the batch is applied; no request is answered in between."""
    for number in range(20):
        await scene.peer.store(scene.segment_id, b"x")
        assert (await scene.peer.read(scene.segment_id, number)).payload == b"x"
        assert (await scene.peer.info(scene.segment_id)).length == number + 1


async def test_a_reader_at_the_tail_is_told_before_the_ack(scene: Scene) -> None:
    peer = scene.peer
    await peer.start(m.Subscribe(segment_id=scene.segment_id, offset=0, credit_bytes=KIB))
    await peer.append(scene.segment_id, b"x")
    kinds = [type((await peer.receive())[1]) for _ in range(2)]
    assert kinds == [m.Data, m.AppendAck]


async def test_an_answer_that_follows_a_lone_append_is_given(scene: Scene) -> None:
    """Behaviour 66: a refusal that rests on it waits for it."""
    peer = scene.peer
    stored, refused = (
        await peer.append(scene.segment_id, b"x"),
        await peer.append(scene.segment_id, b"y", expected_offset=7),
    )
    outcomes = await peer.settled([*stored, *refused])
    assert [type(outcome).__name__ for outcome in outcomes] == ["Stored", "ErrorCode"]


async def test_while_two_peers_speak_the_loop_waits_for_no_disk(scene: Scene) -> None:
    async with await Peer.connect(scene.server.address) as other:
        await scene.asleep()
        for _ in range(5):
            await scene.peer.store(scene.segment_id, b"x")
            await scene.asleep()
            await other.info(scene.segment_id)
            scene.files.taken()
            await scene.peer.store(scene.segment_id, b"y")
            assert scene.files.taken() == [False]
            await scene.asleep()


async def test_a_peer_that_left_is_not_remembered(scene: Scene) -> None:
    other = await Peer.connect(scene.server.address)
    await other.send(encode(m.Ping(), request_id=0))
    await other.receive()
    connections = scene.server.connections
    assert connections.heard_last is not None
    await other.close()
    await until(lambda: connections.heard_last is None)
