"""Servers on a volume that their data fills: what does not fit, and how they continue after a truncation."""

import asyncio
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from millrace import blocking
from millrace.client.errors import DeliveryTimeoutError
from millrace.client.write.options import WriterOptions
from millrace.model.cut import HEAD, TAIL
from millrace.model.quantities import parse_size
from millrace.server.app import Server
from millrace.server.errors import NoSpaceError
from millrace.server.host.room import RESERVE_BYTES_MIN
from millrace.server.wal import TIER2_BYTES_MIN, WalOptions, needed_bytes
from millrace.testing import TestServer
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.limits import KIB, MIB
from tests.support.files import MemoryFileSystem
from tests.support.internal import Appender
from tests.support.protocol import Peer, Stored
from tests.support.servers import BUSY, SMALL_WAL, server_options
from tests.support.small_disk import small_disk
from tests.support.waiting import PATIENCE_S, settled, until
from tests.support.wal import append_run

NEEDED_BYTES: Final = needed_bytes(SMALL_WAL, reserve_bytes=RESERVE_BYTES_MIN, has_tier2=True)
EVENT_BYTES: Final = 48 * KIB
LOG_EVENTS_COUNT_MAX: Final = 2 * SMALL_WAL.file_size_bytes_min // EVENT_BYTES
FLUSHING: Final = replace(BUSY, flush_size_bytes=256 * KIB, chunk_size_bytes_max=MIB)


def make_server(folder: Path, files: MemoryFileSystem, wal: WalOptions = SMALL_WAL) -> Server:
    (folder / "containers" / "0000").mkdir(parents=True, exist_ok=True)
    return Server(server_options(folder, container=FLUSHING, wal=wal), files=files)


def advised(text: str) -> dict[str, int]:
    """Return the settings that an error advises, by name."""
    return {name: parse_size(value) for name, value in re.findall(r"wal\.(\w+)=(\d+ \w+)", text)}


@pytest.mark.asyncio
async def test_a_volume_that_is_too_small_is_refused_with_settings_that_fit(tmp_path: Path) -> None:
    """Behaviour 103: the error has the room that is needed, the room that is free, and values that fit."""
    files = MemoryFileSystem(capacity_bytes=NEEDED_BYTES - 64 * KIB)

    with pytest.raises(NoSpaceError) as refused:
        await make_server(tmp_path, files).start()

    text = str(refused.value)
    assert f"has space for {files.free_bytes(tmp_path) / MIB:.1f} MiB, but {NEEDED_BYTES / MIB:.1f} MiB are" in text
    assert "wal.run_size_bytes_max, 64 KiB" in text
    assert "wal.headroom_bytes, 8 KiB" in text
    values = advised(text)
    assert set(values) == {"run_size_bytes_max", "headroom_bytes"}
    run, headroom = values["run_size_bytes_max"], values["headroom_bytes"]
    smaller = replace(SMALL_WAL, run_size_bytes_max=run, headroom_bytes=headroom)
    async with make_server(tmp_path, files, smaller) as server, await Peer.connect(server.address) as peer:
        await peer.store(await peer.create_segment("raw/a"), b"a")


async def small_volume(folder: Path) -> tuple[MemoryFileSystem, int]:
    """Return a volume with room for about a mebibyte of chunks, and the id of raw/a on it."""
    files = MemoryFileSystem(capacity_bytes=NEEDED_BYTES + 64 * KIB)
    async with make_server(folder, files) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
    files.open(folder / "ballast", create=True).truncate(TIER2_BYTES_MIN - 3 * MIB // 2)
    return files, segment_id


async def recovered(server: Server) -> None:
    """Wait until the server takes appends, and has deleted what it can."""
    await until(lambda: not server.health())
    await settled(server)


async def fill(server: Server, peer: Peer, segment_id: int) -> int:
    """Append until tier 2 has no room and the log refuses; return how many events were acknowledged."""
    flusher, count = server.opened.flusher, 0
    while True:
        outcomes = await peer.settled(await peer.append(segment_id, bytes([count % 256]) * EVENT_BYTES))
        if outcomes != [ErrorCode.NO_SPACE]:
            count += 1
        elif flusher.short_of_room.is_set():
            return count


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_full_volume_takes_writes_again_after_each_truncation(tmp_path: Path) -> None:
    """Behaviour 103: also after a kill while it was full. What was acknowledged stays until it is truncated."""
    files, segment_id = await small_volume(tmp_path)
    length = 0
    for round_number in range(5):
        async with make_server(tmp_path, files) as server, await Peer.connect(server.address) as peer:
            count = await fill(server, peer, segment_id)
            assert count > LOG_EVENTS_COUNT_MAX
            start, length = length, length + count * EVENT_BYTES
            assert len(await peer.read_all(segment_id, start=start)) == length - start
            files = files.copy() if round_number % 2 else files
        async with make_server(tmp_path, files) as server, await Peer.connect(server.address) as peer:
            assert len(await peer.read_all(segment_id, start=start)) == length - start
            await peer.ask(m.TruncateSegment(segment_id, length), m.SegmentInfo)
            await recovered(server)


@pytest.mark.asyncio
async def test_a_part_of_the_room_is_used_again_after_a_part_is_truncated(tmp_path: Path) -> None:
    """Behaviour 103: a tail that is larger than the room is flushed in smaller chunks."""
    files, segment_id = await small_volume(tmp_path)
    async with make_server(tmp_path, files) as server, await Peer.connect(server.address) as peer:
        length = EVENT_BYTES * await fill(server, peer, segment_id)
        await peer.ask(m.TruncateSegment(segment_id, MIB // 2), m.SegmentInfo)
        await recovered(server)
        more = EVENT_BYTES * await fill(server, peer, segment_id)
        assert more > LOG_EVENTS_COUNT_MAX * EVENT_BYTES
        assert len(await peer.read_all(segment_id, start=MIB // 2)) == length + more - MIB // 2


@pytest.mark.slow
def test_a_process_on_a_volume_of_64_mib_ends_with_the_settings(tmp_path: Path) -> None:
    """Behaviour 103."""
    with small_disk(tmp_path / "disk", 64 * MIB) as disk:
        command = [str(Path(sys.executable).with_name("millrace")), "serve", "--console", "none"]
        command += ["--listen", "127.0.0.1:0", "--data-dir", str(disk / "data")]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

        assert ended.returncode == 1
        assert "76.0 MiB are needed" in ended.stderr
        assert "Traceback" not in ended.stderr
        values = advised(ended.stderr.replace("\n", " "))
        settings = {f"MILLRACE_WAL_{name.upper()}": str(value) for name, value in values.items()}
        server = TestServer(disk / "data", settings=settings)
        server.start()
        server.stop()


def write_until_full(client: blocking.Client) -> int:
    """Write events of a mebibyte until the server has refused for too long; return how many were acknowledged."""
    count = 0
    options = WriterOptions(delivery_timeout_s=3.0)
    with suppress(DeliveryTimeoutError), client.writer("shop/orders", options=options) as writer:
        while True:
            writer.write(bytes(MIB)).result()
            count += 1
    return count


@pytest.mark.slow
def test_a_process_on_a_volume_of_96_mib_takes_writes_again_after_truncation(tmp_path: Path) -> None:
    """Behaviour 103: with the settings that a server has by default."""
    with small_disk(tmp_path / "disk", 96 * MIB) as disk:
        server = TestServer(disk / "data", settings={})
        server.start()
        try:
            for is_killed in (False, True):
                with blocking.connect(server.address) as client:
                    client.create_stream("shop/orders")
                    count = write_until_full(client)
                    assert count >= 20
                if is_killed:
                    server.kill()
                    server.start()
                with blocking.connect(server.address) as client:
                    with client.reader("shop/orders", start=HEAD, end=TAIL) as reader:
                        assert sum(1 for _ in reader) >= count
                    client.truncate_stream("shop/orders", "tail")
                    with client.writer("shop/orders") as writer:
                        writer.write(b"after").result()
        finally:
            server.stop()


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_full_log_refuses_before_any_ack_and_recovers_by_itself(tmp_path: Path) -> None:
    """Behaviour 44: NoSpace before any ack; reads, truncates and deletes work; it recovers when space returns."""
    files = MemoryFileSystem()
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    async with Server(server_options(tmp_path), files=files) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        doomed = await peer.create_segment("raw/doomed")
        files.capacity_bytes = files.used_bytes + RESERVE_BYTES_MIN
        content = b""
        for number in range(200):
            piece = bytes([number]) * (8 * KIB)
            (outcome,) = await peer.settled(await peer.append(segment_id, piece))
            if outcome is ErrorCode.NO_SPACE:
                break
            assert isinstance(outcome, Stored)
            content += piece
        else:
            pytest.fail("the disk never filled")
        assert await peer.read_all(segment_id) == content
        await peer.ask(m.TruncateSegment(segment_id, 8 * KIB), m.SegmentInfo)
        await peer.ask(m.DeleteSegment(doomed), m.Done)
        await until(lambda: "no space" in server.health())
        with pytest.raises(NoSpaceError, match=r"no space for a.* log file.*; reads, truncates and deletes work"):
            server.opened.container.append(append_run(segment_id, 0, b"x"), Appender())
        files.capacity_bytes = 64 << 20
        async with asyncio.timeout(PATIENCE_S):
            while not isinstance((await peer.settled(await peer.append(segment_id, b"again")))[0], Stored):
                pass
        assert await peer.read_all(segment_id, start=8 * KIB) == content[8 * KIB :] + b"again"
