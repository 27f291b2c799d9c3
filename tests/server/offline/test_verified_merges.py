"""A server that is killed at each step of copying small merged segments: all of it is there, and `verify` agrees."""

import asyncio
import shutil
from pathlib import Path

from millrace.server.app import Server
from millrace.server.offline.findings import Verification
from millrace.server.offline.verification import verify_folder
from tests.support.protocol import Peer
from tests.support.servers import QUIET, server_options
from tests.support.transactions import PeerTransaction, create_stream

STEPS = ("committed", "linked in a checkpoint", "copied", "stored", "deleted")


async def make_folders(folder: Path) -> tuple[int, bytes]:
    """Let a server copy what was committed, and copy its folder after each step; return its segment and the bytes."""
    running = folder / "running"
    async with (
        Server(server_options(running, container=QUIET)) as server,
        await Peer.connect(server.address) as peer,
    ):
        flusher = server.opened.flusher
        (segment_id,) = await create_stream(peer, "a/b", 1)
        content = b""
        for number in range(12):
            transaction = await PeerTransaction.begin(peer, "a/b")
            payload = b"%02d " % number * (1 + number)
            await transaction.write(payload)
            if number in (3, 7):
                await flusher.flush()
                assert await peer.read_all(segment_id) == content
            await transaction.commit()
            content += payload
        for name, step in zip(
            STEPS, (None, flusher.checkpoint, flusher.flush, flusher.checkpoint, flusher.copy), strict=True
        ):
            if step is not None:
                await step()
            assert await peer.read_all(segment_id) == content
            await asyncio.to_thread(shutil.copytree, running, folder / name)
        return segment_id, content


async def serve(folder: Path, segment_id: int, content: bytes) -> None:
    """Start a server, look at what it serves, flush that, and look again; also after a truncation in the middle."""
    for _ in range(2):
        async with (
            Server(server_options(folder, container=QUIET)) as server,
            await Peer.connect(server.address) as peer,
        ):
            flusher = server.opened.flusher
            assert await peer.read_all(segment_id) == content
            await flusher.flush()
            assert await peer.read_all(segment_id) == content
            await flusher.checkpoint()
            await flusher.copy()
            assert await peer.read_all(segment_id) == content
            state = server.opened.container.state
            assert len(state.segments) == 1
            assert len(state.segments[segment_id].chunks) <= 3
            assert (state.merged, state.unflushed) == ({}, {})


def test_a_kill_during_the_copy_of_small_merged_segments_loses_nothing(tmp_path: Path) -> None:
    """Behaviours 41 and 65: before the checkpoint, before and after the copy of it, and when their own data is gone."""
    segment_id, content = asyncio.run(make_folders(tmp_path))
    for name in STEPS:
        assert Verification.of(verify_folder(tmp_path / name)).findings == [], name
        asyncio.run(serve(tmp_path / name, segment_id, content))
        assert Verification.of(verify_folder(tmp_path / name)).findings == [], name
