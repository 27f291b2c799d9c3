"""The whole server: its life, its folder, its recovery in place, its console."""

import asyncio
import errno
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.model.address import Address
from millrace.server.app import DESCRIPTORS_RESERVED_COUNT, Server
from millrace.server.errors import ConfigurationError, FolderLockedError, FolderVersionError
from millrace.server.host.descriptors import descriptor_limit
from millrace.server.host.files import OsFile, OsFileSystem
from millrace.server.process import ENDING_SIGNALS
from millrace.wire import messages as m
from tests.crash.processes import ServerProcess
from tests.support.feed_peer import FeedPeer
from tests.support.files import MemoryFileSystem
from tests.support.folders import tmp_path, tree
from tests.support.pairs import Program
from tests.support.protocol import Peer
from tests.support.s3 import Bucket
from tests.support.servers import QUIET, server_options
from tests.support.storage import FaultyStorage
from tests.support.waiting import PATIENCE_S, until

__all__ = ["tmp_path"]


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_two_servers_on_one_folder(tmp_path: Path) -> None:
    """Behaviour 47: the second one is refused, the first one continues."""
    async with Server(server_options(tmp_path)) as server, await Peer.connect(server.address) as peer:
        with pytest.raises(FolderLockedError):
            await Server(server_options(tmp_path)).start()
        await peer.create_segment("raw/a")


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_second_server_process_exits_with_a_clear_message(tmp_path: Path) -> None:
    """Behaviour 47: the second exits with a clear message."""
    async with Server(server_options(tmp_path)):
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "millrace.server", str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "another server owns this folder" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_log_of_another_server_is_refused(tmp_path: Path) -> None:
    """Behaviour 47: another identity: refused, both named."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    for folder in (mine, other):
        async with Server(server_options(folder)) as server, await Peer.connect(server.address) as peer:
            await peer.create_segment("raw/a")
    identities = [json.loads((folder / "identity.json").read_text())["server_id"] for folder in (mine, other)]
    os.replace(other / "identity.json", mine / "identity.json")
    before = tree(mine)
    with pytest.raises(FolderVersionError) as caught:
        await Server(server_options(mine)).start()
    assert tree(mine) == before
    assert all(identity in str(caught.value) for identity in identities)


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_a_port_in_use_is_noticed_before_the_folder_is_touched(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    async with Server(server_options(kept)) as server, await Peer.connect(server.address) as peer:
        await peer.create_segment("raw/a")
    before = tree(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = Address(*listener.getsockname())
        for options in (
            replace(server_options(kept), listen=taken),
            server_options(kept, console=taken),
            replace(server_options(tmp_path / "new" / "folder"), listen=taken),
        ):
            with pytest.raises(ConfigurationError, match=f"cannot listen on {taken}"):
                await Server(options).start()
    assert tree(tmp_path) == before


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_nobody_is_let_in_before_all_is_recovered(tmp_path: Path) -> None:
    """The port is ours from the start; a peer that comes too early is refused by the system, and tries again."""
    refused: list[bool] = []

    class Asking(OsFileSystem):
        def lock(self, path: Path) -> OsFile:
            with socket.socket() as peer:
                refused.append(peer.connect_ex(tuple(place)) == errno.ECONNREFUSED)
            return super().lock(path)

    with socket.create_server(("127.0.0.1", 0)) as free:
        place = free.getsockname()
    async with Server(replace(server_options(tmp_path), listen=Address(*place)), files=Asking()) as server:
        await (await Peer.connect(server.address)).close()
    assert refused == [True]


@pytest.mark.asyncio
async def test_an_address_that_cannot_be_used_is_named_and_nothing_stays_open(tmp_path: Path) -> None:
    async with Server(server_options(tmp_path / "first")) as server:
        taken = Address.parse(server.address, default_port=0)
        with pytest.raises(ConfigurationError, match=str(taken.port)):
            await Server(replace(server_options(tmp_path / "second"), listen=taken)).start()
        with pytest.raises(ConfigurationError, match=str(taken.port)):
            await Server(server_options(tmp_path / "second", console=taken)).start()
    async with Server(server_options(tmp_path / "second")):
        pass


@pytest.mark.asyncio
async def test_a_server_that_is_being_recovered_is_live_and_not_ready(tmp_path: Path) -> None:
    """Behaviour 43: from the start on the console says what is waited for."""
    files = MemoryFileSystem()
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    server = Server(server_options(tmp_path, console=Address("127.0.0.1", 0)), files=files, storage=FaultyStorage())

    async def ask(path: str) -> tuple[int, Any]:
        async with await FeedPeer.ask(server.console_address, path) as peer:
            return peer.status, json.loads(await peer.body())

    files.stall()
    starting = asyncio.create_task(server.start())
    try:
        await until(files.stalled.is_set)
        recovering = {"healthy": False, "problem": "the container is being recovered"}
        assert await ask("/readyz") == (503, recovering)
        assert await ask("/livez") == (200, {"live": True})
        assert (await ask("/api/v1/server"))[1]["problem"] == recovering["problem"]
        assert (await ask("/api/v1/streams"))[0] == 503
        assert (await ask("/streams/shop/orders/events"))[0] == 503
    finally:
        files.resume()
        await starting
    assert (await ask("/readyz"))[0] == 200
    await server.stop()


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_console_answers_while_the_container_is_recovered(tmp_path: Path) -> None:
    """Behaviours 43 and 45: health says what is happening; the server comes back by itself once its disks do."""
    files = MemoryFileSystem()
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    storage = FaultyStorage()
    options = server_options(tmp_path, console=Address("127.0.0.1", 0))
    async with Server(options, files=files, storage=storage) as server:

        def get(path: str) -> bytes:
            with urllib.request.urlopen(f"http://{server.console_address}{path}", timeout=10) as response:
                content: bytes = response.read()
                return content

        assert json.loads(await asyncio.to_thread(get, "/health"))["healthy"]
        async with await Peer.connect(server.address) as peer:
            segment_id = await peer.create_segment("raw/a")
            await peer.store(segment_id, b"abc")
            # First the log fails, then its recovery.
            is_repaired = threading.Event()
            files.fail_syncs_until(is_repaired.is_set)
            await peer.append(segment_id, b"unknown")
            await until(lambda: "could not be opened again" in server.health())
        assert b"millrace_front" in await asyncio.to_thread(get, "/metrics")
        assert "cache" in json.loads(await asyncio.to_thread(get, "/api/v1/server"))["statistics"]
        assert json.loads(await asyncio.to_thread(get, "/livez")) == {"live": True}
        is_repaired.set()
        await until(lambda: not server.health())
        assert b"millrace_wal" in await asyncio.to_thread(get, "/metrics")
        async with await Peer.connect(server.address) as peer:
            assert (await peer.read_all(segment_id)).startswith(b"abc")


@pytest.mark.asyncio
async def test_a_stalled_disk_is_told_with_the_measured_figure(tmp_path: Path) -> None:
    """Behaviour 45: acks wait, health says so."""
    files = MemoryFileSystem()
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    async with Server(server_options(tmp_path), files=files) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        files.stall(folder="wal")
        ids = await peer.append(segment_id, b"x")
        async with asyncio.timeout(PATIENCE_S):
            while "has not answered for" not in server.health():
                await peer.ask(m.ListStreams("", "", 1), m.StreamList)
        assert ids[0] not in peer.outcomes
        files.resume()
        await peer.settled(ids)
        assert not server.health()


@pytest.mark.slow
@pytest.mark.asyncio
async def test_stopping_takes_no_longer_than_it_may(tmp_path: Path) -> None:
    """Behaviour 48: also when a client takes nothing and tier 2 does not answer; nothing is lost."""
    storage = FaultyStorage()
    options = replace(server_options(tmp_path), shutdown_s=1.0)
    server = Server(options, storage=storage)
    await server.start()
    loop = asyncio.get_running_loop()
    async with await Peer.connect(server.address, read_ahead=1 << 10) as peer:
        segment_id = await peer.create_segment("raw/a")
        await peer.store(segment_id, bytes(50_000))
        for _ in range(500):
            await peer.start(m.Read(segment_id=segment_id, offset=0, size_max=50_000, wait_ms=0))
        storage.open.clear()
        started_s = loop.time()
        await server.stop()
        assert loop.time() - started_s < 2.0
    storage.open.set()
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        assert await peer.read_all(segment_id) == bytes(50_000)


@pytest.mark.asyncio
async def test_connections_leave_descriptors_for_the_log(tmp_path: Path) -> None:
    """Behaviour 50: descriptors used up: there is a cap below what the process may have."""
    async with Server(server_options(tmp_path)) as server:
        assert server.connections.count_max <= descriptor_limit() - DESCRIPTORS_RESERVED_COUNT


@pytest.mark.slow
@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_a_signal_ends_a_start_at_once(tmp_path: Path, number: signal.Signals) -> None:
    """As a crash would: here it waits for a store that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as store:
        host, port = store.getsockname()
        bucket = Bucket("bucket", f"http://{host}:{port}")
        starting = Program(tmp_path, bucket.url, {**os.environ, **bucket.environment})
        try:
            store.settimeout(PATIENCE_S)
            asked, _ = store.accept()
            with asked:
                starting.send(number)
                assert starting.ended() == (-number, "")
        finally:
            starting.kill()


@pytest.mark.slow
@pytest.mark.asyncio
async def test_sigint_ends_an_idle_server_in_good_order(tmp_path: Path) -> None:
    """Behaviour 48: at once, when nothing is in flight; an idle connection holds nothing up."""
    server = await ServerProcess.start(tmp_path / "data", environment={})
    async with await Peer.connect(server.address) as peer:
        await peer.create_segment("raw/a")
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        assert await server.end(signal.SIGINT) == 0
        assert loop.time() - started_s < 5
    assert "Traceback" not in server.said


@pytest.mark.asyncio
async def test_damage_that_a_task_in_the_background_meets_is_restored_while_the_server_runs(tmp_path: Path) -> None:
    """Behaviour 41: it is no reason to stop the server, though nobody has asked for what is damaged."""
    storage = FaultyStorage()
    options = server_options(tmp_path, container=replace(QUIET, verified_at_once_count_max=0))
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        await peer.ask(m.CreateStream("a/b", 1, ""), m.StreamInfo)
        await server.opened.flusher.checkpoint()
        await server.opened.flusher.copy()
    folder = tmp_path / "containers" / "0000"
    with closing(sqlite3.connect(folder / "checkpoint.db", isolation_level=None)) as connection:
        connection.execute("UPDATE streams SET name = name || 'x'")
    async with Server(options, storage=storage) as server:
        await until(lambda: [*folder.glob("checkpoint.db.damaged-*")] and not server.health())
        async with await Peer.connect(server.address) as peer:
            assert (await peer.ask(m.GetStream("a/b"), m.StreamInfo)).name == "a/b"
        assert server.failure is None
