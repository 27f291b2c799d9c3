"""What a server costs at an object store, in requests, with the settings that it has by default."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.server.app import Server
from millrace.server.container.options import ContainerOptions
from millrace.server.object_store.url import StoreUrl
from millrace.server.options import ServerOptions
from millrace.server.wal import WalOptions
from millrace.wire.limits import MIB
from tests.support.clock import ManualClock
from tests.support.folders import tmp_path
from tests.support.measured_storage import Counts, MeasuredStorage
from tests.support.protocol import Peer
from tests.support.s3 import MotoServer
from tests.support.servers import server_options
from tests.support.storage import SCOPE, FaultyStorage
from tests.support.waiting import PATIENCE_S

__all__ = ["tmp_path"]

STORE = ServerOptions(store=StoreUrl.parse("s3://bucket/prefix")).for_storage()


def options(folder: Path, **container: float) -> ServerOptions:
    """Return the options of a server with a store, on a log that takes little room in the memory of the test."""
    defaults: ContainerOptions = replace(STORE.container, **container)  # type: ignore[arg-type]  # numbers, all of them
    wal = WalOptions(zero_fill=False, spare_files=1, files_max=8)
    return server_options(folder, container=defaults, cache=STORE.cache, wal=wal)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_start_makes_the_requests_that_are_stated(
    moto: MotoServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Behaviour 95: those of the probe, above all. The first one finds nothing, and names the owner."""
    bucket = moto.make_bucket()
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    settings = replace(options(tmp_path), store=StoreUrl.parse(bucket.url))
    counts: list[Counter[str]] = []
    for _ in range(2):
        moto.gate.clear()
        async with Server(settings, clock=ManualClock()):
            counts.append(moto.gate.counts.copy())

    first, second = counts
    assert first == Counter(PUT=46, GET=45, LIST=8, POST=2)
    assert second == Counter(PUT=45, GET=45, LIST=4, POST=2)


@pytest.mark.asyncio
async def test_an_idle_server_makes_no_request(tmp_path: Path) -> None:
    """Behaviour 95: once what it has stored is copied, nothing in an hour but one list, for orphans."""
    clock = ManualClock()
    storage = MeasuredStorage(FaultyStorage(), clock=clock)
    async with (
        Server(options(tmp_path), storage=storage, clock=clock) as server,
        await Peer.connect(server.address) as peer,
    ):
        segment_id = await peer.create_segment("raw/a")
        await peer.store(segment_id, b"x")
        flusher = server.opened.flusher
        await flusher.flush()
        state = server.opened.container.state
        async with asyncio.timeout(PATIENCE_S):
            while state.changed_count or flusher._checkpointer.has_news or flusher._copying is not None:
                await clock.advance(5.0)
                await asyncio.sleep(0.001)  # threads store and copy
        assert [verb for verb, name in storage.requests if "checkpoints" in name][-2:] == ["PUT", "LIST"]
        storage.counts = Counts()
        for _ in range(725):
            await clock.advance(5.0)
        assert storage.counts == Counts(lists=1)


@pytest.mark.asyncio
async def test_a_busy_server_makes_the_requests_that_are_stated(tmp_path: Path) -> None:
    """Behaviour 95: a PUT for 8 MiB, at most 20 a second for small tails; copies, lists and deletes are few.

    Half a minute of one segment with 4 MiB/s and forty with 50 bytes a second, each of which is flushed every 6 s.
    """
    clock = ManualClock()
    storage = MeasuredStorage(FaultyStorage(), clock=clock)
    busy_bytes = 0
    async with (
        Server(options(tmp_path), storage=storage, clock=clock) as server,
        await Peer.connect(server.address) as peer,
    ):
        flusher, log = server.opened.flusher, server.opened.container.log
        busy, *others = [await peer.create_segment(f"raw/{number}") for number in range(41)]
        storage.requests.clear()
        for _ in range(15):
            for segment_id in others:
                await peer.append(segment_id, b"x" * 100)
            await peer.store(busy, bytes(8 * MIB))
            busy_bytes += 8 * MIB
            clock.move(2.0)
            await flusher._flush_due()
            await flusher._checkpoint_due()
            await flusher._delete_some()
            if flusher._is_copy_due():  # its own task, too, makes none beside this one
                flusher._copying = asyncio.create_task(flusher._copy_in_background())
                await flusher._copying
        fullness = log.fullness
        requests = [(verb, SCOPE.sub("", name).partition("/")[0]) for verb, name in storage.requests]
    counts = Counter(requests)
    assert fullness <= 0.5
    large = busy_bytes // (8 * MIB)
    assert counts["PUT", "segments"] == large + 40 * 5
    # Small chunks at the end of a segment are written again with what follows: footer and bytes are read for that.
    assert counts["GET", "segments"] <= 2 * 40 * 5
    assert counts["DELETE", "segments"] <= counts["GET", "segments"] // 2
    # One for each file of the log that is recycled, at most, and one a minute that lets small chunks be deleted.
    assert 1 <= counts["PUT", "checkpoints"] <= busy_bytes / (64 * MIB) + 2
    assert counts["LIST", "checkpoints"] <= counts["PUT", "checkpoints"]
