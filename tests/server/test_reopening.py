"""A disk that cannot be written or read for a while, in any step: the server lives, and continues by itself."""

import asyncio
import errno
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from millrace.model.address import Address
from millrace.server.app import Server
from millrace.server.hosting.life import RECOVERING
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.crash.processes import ServerProcess
from tests.support.clock import ManualClock
from tests.support.files import MemoryFileSystem, SteppedFileSystem
from tests.support.folders import tmp_path
from tests.support.protocol import Peer, Stored, code_of
from tests.support.servers import QUIET, server_options
from tests.support.storage import FaultyStorage
from tests.support.switched_server import switch_of
from tests.support.waiting import until

__all__ = ["tmp_path"]

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

FOLDER = Path("/data")
CHECKPOINT = FOLDER / "containers" / "0000" / "checkpoint.db"


class Outage:
    """A server on a disk in memory that a test can take away."""

    def __init__(self) -> None:
        self.files = SteppedFileSystem()
        self.clock = ManualClock()
        self.storage = FaultyStorage()
        self.server = Server(
            server_options(FOLDER, container=QUIET, console=Address("127.0.0.1", 0)),
            files=self.files,
            storage=self.storage,
            clock=self.clock,
        )
        self.content = b""
        self.segment_id = 0

    async def begin(self) -> None:
        async with await Peer.connect(self.server.address) as peer:
            self.segment_id = await peer.create_segment("raw/a")
            await self.store(peer)

    async def store(self, peer: Peer) -> None:
        (outcome,) = await peer.settled(await peer.append(self.segment_id, b"acked"))
        assert isinstance(outcome, Stored)
        self.content = (await peer.read_all(self.segment_id))[: outcome.offset + 5]

    async def fail_log(self, peer: Peer) -> None:
        """Fail every sync until the log has failed."""
        container = self.server.opened.container
        self.files.fail_syncs_until(lambda: container.has_failed)
        (outcome,) = await peer.settled(await peer.append(self.segment_id, b"doubt"))
        assert outcome is ErrorCode.OUTCOME_UNKNOWN

    async def read(self) -> bytes:
        async with await Peer.connect(self.server.address) as peer:
            return await peer.read_all(self.segment_id)

    async def until_well(self) -> None:
        def is_well() -> bool:
            self.clock.move(0.5)
            return not self.server.health()

        await until(is_well)
        assert self.server.failure is None
        async with await Peer.connect(self.server.address) as peer:
            assert (await peer.read_all(self.segment_id)).startswith(self.content)
            await self.store(peer)

    async def page(self, path: str) -> str:
        def get() -> str:
            address = f"http://{self.server.console_address}{path}"
            with suppress(urllib.error.HTTPError), urllib.request.urlopen(address, timeout=30) as response:
                content: bytes = response.read()
                return content.decode()
            return "503"

        return await asyncio.to_thread(get)


@asynccontextmanager
async def outage() -> AsyncIterator[Outage]:
    started = Outage()
    async with started.server:
        await started.begin()
        yield started


async def test_each_step_of_closing_and_opening_again_may_be_refused() -> None:
    """Behaviour 83: one step after the other; reads continue, and the container is open again by itself."""
    step, is_reached = 0, True
    async with outage() as disk:
        while is_reached:
            step += 1
            seen: list[int] = []

            def refuses(
                number: int, _path: Path, _is_change: bool, *, seen: list[int] = seen, step: int = step
            ) -> bool:
                # Counted from the failure of the log on, which is the first sync of all.
                if disk.server.host.container.state is RECOVERING:
                    seen.append(number)
                return len(seen) == step and number == seen[-1]

            async with await Peer.connect(disk.server.address) as peer:
                disk.files.refuses = refuses
                await disk.fail_log(peer)
                assert (await disk.read()).startswith(disk.content)
                await disk.until_well()
            is_reached = len(seen) >= step
            disk.files.refuses = lambda _number, _path, _is_change: False
        assert step > 30


async def test_a_log_that_fails_again_at_once_is_recovered_again() -> None:
    """Behaviour 83: also while the connections to the container before are still being ended."""
    async with outage() as disk, await Peer.connect(disk.server.address) as peer:
        before = disk.server.opened
        await disk.fail_log(peer)
        while (opened := disk.server.opened) is before:  # noqa: ASYNC110  # seen in the very turn of the loop
            await asyncio.sleep(0)
        assert disk.server.host.container.state is RECOVERING
        opened.container.log_failed(OSError(errno.EIO, "again"))
        await disk.until_well()
        assert disk.server.opened is not opened


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS])
async def test_while_nothing_can_be_written_reads_go_on_and_appends_learn_why(error: int) -> None:
    """Behaviour 83: health and metrics say it, too, for as long as it takes."""
    async with outage() as disk, await Peer.connect(disk.server.address) as peer:
        disk.files.error = error
        disk.files.refuses = lambda _number, _path, is_change: is_change
        (outcome,) = await peer.settled(await peer.append(disk.segment_id, b"doubt"))
        assert outcome is ErrorCode.OUTCOME_UNKNOWN
        for _ in range(4):
            await until(lambda: "could not be opened again" in disk.server.health())
            # The same connection, and new ones.
            assert await peer.read_all(disk.segment_id) == disk.content
            assert await disk.read() == disk.content
            (refused,) = await peer.settled(await peer.append(disk.segment_id, b"later", writer_number=0))
            assert refused in (ErrorCode.UNAVAILABLE, ErrorCode.PIPELINE_BROKEN)
            with pytest.raises(Exception, match=r"UNAVAILABLE.*could not be opened again.*\[Errno"):
                await peer.create_segment("raw/b")
            disk.clock.move(60.0)
        assert "millrace_server_read_only 1.0" in await disk.page("/metrics")
        assert await disk.page("/health") == "503"
        disk.files.refuses = lambda _number, _path, _is_change: False
        await disk.until_well()
        assert "millrace_server_read_only 0.0" in await disk.page("/metrics")


async def test_a_checkpoint_that_cannot_be_read_for_a_while_is_not_damaged() -> None:
    """Behaviour 83: who asks for what is idle is told to ask again; nobody is cut off, nothing is set aside."""
    async with outage() as disk, await Peer.connect(disk.server.address) as peer:
        opened = disk.server.opened
        for number in range(4):
            await peer.create_segment(f"raw/{number}")
        await opened.flusher.flush()
        await opened.flusher.checkpoint()
        await asyncio.sleep(0)  # idle entities are evicted after the step in which they fell idle
        idle = next(number for number in range(1, 6) if not opened.container.state.segments.is_resident(number))
        disk.files.refuses = lambda _number, path, _is_change: path == CHECKPOINT
        assert await code_of(peer.info(idle)) is ErrorCode.UNAVAILABLE
        (refused,) = await peer.settled(await peer.append(idle, b"later"))
        assert refused is ErrorCode.UNAVAILABLE
        disk.files.refuses = lambda _number, _path, _is_change: False
        assert (await peer.info(idle)).segment_id == idle
        assert disk.server.opened is opened
        assert not disk.server.health()
        assert [name for name in disk.files.list_directory(CHECKPOINT.parent) if "damaged" in name] == []


async def test_a_checkpoint_that_cannot_be_saved_for_a_while_is_saved_later() -> None:
    """Behaviour 83: memory and log continue; the next checkpoint is written to a new file."""
    async with outage() as disk, await Peer.connect(disk.server.address) as peer:
        opened = disk.server.opened
        disk.files.refuses = lambda _number, path, is_change: is_change and path.name.startswith("checkpoint")
        for _ in range(2):
            await disk.store(peer)
            with suppress(Exception):
                await opened.flusher.checkpoint()
        disk.files.refuses = lambda _number, _path, _is_change: False
        await disk.store(peer)
        await opened.flusher.checkpoint()
        assert disk.server.opened is opened
        assert not disk.server.health()
    again = Outage()
    again.server = Server(server_options(FOLDER, container=QUIET), files=disk.files, storage=disk.storage)
    async with again.server as server, await Peer.connect(server.address) as peer:
        assert await peer.read_all(disk.segment_id) == disk.content
        assert server.opened.summary.damages == 0


async def test_a_process_outlives_a_read_only_disk(tmp_path: Path) -> None:
    """Behaviour 83: a real server on real files; what it acknowledged before and after is there."""
    folder = tmp_path / "data"
    switch = switch_of(folder)
    server = await ServerProcess.start(folder, environment={}, module="tests.support.switched_server")
    try:
        async with await Peer.connect(server.address) as peer:
            segment_id = await peer.create_segment("raw/a")
            await peer.store(segment_id, b"before")
            switch.touch()
            (outcome,) = await peer.settled(await peer.append(segment_id, b"doubt"))
            assert outcome is ErrorCode.OUTCOME_UNKNOWN
            assert await code_of(peer.create_segment("raw/b")) is ErrorCode.UNAVAILABLE
            assert await peer.read_all(segment_id) == b"before"
            switch.unlink()
            await peer.ended()
        content = await _stored(server, segment_id, b"after")
        assert content.startswith(b"before")
        assert content.endswith(b"after")
        assert server.process.returncode is None
    finally:
        await server.kill()
    assert "Traceback" not in server.said


async def _stored(server: ServerProcess, segment_id: int, payload: bytes) -> bytes:
    """Append as soon as the server takes it, and return what the segment holds then."""
    while True:
        with suppress(ConnectionError):
            async with await Peer.connect(server.address) as peer:
                (outcome,) = await peer.settled(await peer.append(segment_id, payload))
                if isinstance(outcome, Stored):
                    return await peer.read_all(segment_id)


async def test_a_failed_sync_is_of_unknown_outcome_and_recovered_from(tmp_path: Path) -> None:
    """Behaviour 43: waiting appends end as unknown, no ack ever comes for them, the container recovers by itself."""
    files = MemoryFileSystem()
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    async with Server(server_options(tmp_path), files=files) as server:
        async with await Peer.connect(server.address) as peer:
            segment_id = await peer.create_segment("raw/a")
            await peer.store(segment_id, b"acknowledged")
            container = server.opened.container
            files.fail_syncs_until(lambda: container.has_failed)
            ids = await peer.append(segment_id, b"unknown")
            assert await peer.settled(ids) == [ErrorCode.OUTCOME_UNKNOWN]
            assert not any(isinstance(message, m.AppendAck) for message in await peer.ended())
        await until(lambda: not server.health())
        async with await Peer.connect(server.address) as peer:
            content = await peer.read_all(segment_id)
            assert content in (b"acknowledged", b"acknowledgedunknown")
            await peer.store(segment_id, b"!")
            assert await peer.read_all(segment_id) == content + b"!"
    files.crash(1)
    async with Server(server_options(tmp_path), files=files) as server, await Peer.connect(server.address) as peer:
        assert await peer.read_all(segment_id) == content + b"!"
