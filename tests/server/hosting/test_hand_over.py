"""Servers whose own disk fails while their log is in the object store: they give up what they own to who waits."""

import asyncio
import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

import millrace
from millrace.server.errors import DiskUnavailableError, OwnershipReleasedError, StorageError, StoreUnavailableError
from millrace.server.host.disk_health import DiskFailure
from millrace.server.hosting.hand_over import HandOver
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.support.clock import ManualClock
from tests.support.files import SteppedFileSystem
from tests.support.folders import tmp_path
from tests.support.object_store import MemoryObjectStore
from tests.support.pairs import pair
from tests.support.protocol import Peer, Stored
from tests.support.s3 import MotoServer
from tests.support.servers import SMALL_WAL
from tests.support.sites import LEASE_S, Site, leases_in, manifest_in
from tests.support.small_disk import small_disk
from tests.support.waiting import until

__all__ = ["tmp_path"]

pytestmark = [pytest.mark.slow]

REMOTE: Final = replace(SMALL_WAL, place="object", puts_per_s_max=0.0)
MIB: Final = 1 << 20


class Owner(Site):
    """A server with its log in the store, on a disk in memory that a test can take away."""

    def __init__(self, store: MemoryObjectStore) -> None:
        self.disk = SteppedFileSystem()
        super().__init__(Path("/data"), store, wal=REMOTE, files=self.disk)

    def refuse(self, *, error: int = errno.EIO, name: str = "") -> None:
        """Let every change fail from now on, or those of files whose names begin so."""
        self.disk.error = error
        self.disk.refuses = lambda _step, path, is_change: is_change and path.name.startswith(name)

    def heal(self) -> None:
        """Let the disk work again."""
        self.disk.refuses = lambda _step, _path, _is_change: False

    def fail_log(self) -> None:
        """Let the log fail, and the container be opened again."""
        self.server.opened.container.log_failed(OSError(errno.EIO, "no answer"))


class Takeover:
    """An owner that serves, and another server that waits."""

    def __init__(self, folder: Path) -> None:
        self.store = MemoryObjectStore()
        self.owner = Owner(self.store)
        self.other = Site(folder / "other", self.store, wal=REMOTE, standby=True)
        self.starting: asyncio.Future[Any] | None = None

    async def begin(self) -> None:
        await self.owner.start()
        await self.owner.stored(b"one")
        self.other.server = self.other._server()
        self.starting = asyncio.ensure_future(self.other.server.start())
        await self.until(lambda: self.other.server.health().startswith("standing by: "))

    async def until(self, predicate: Any) -> None:
        """Let time pass for both until something is true."""
        await self.owner.passing(until(predicate), self.other.clock)

    async def until_given_up(self) -> None:
        """Let time pass until the owner ends by itself, as its process would."""
        with pytest.raises(OwnershipReleasedError, match="a standby is ready"):
            await self.owner.passing(self.owner.server.wait_for_end(), self.other.clock)
        # It owns everything until it has ended.
        assert not manifest_in(self.store)["is_released"]
        assert self.starting is not None
        assert not self.starting.done()
        address = self.owner.server.address
        await self.owner.passing(self.owner.server.stop())
        with pytest.raises(ConnectionRefusedError):
            await Peer.connect(address)

    async def until_taken_over(self) -> None:
        """Let the other one serve: it need not wait for the lease, as all is given back."""
        assert self.starting is not None
        assert manifest_in(self.store)["is_released"]
        assert len(leases_in(self.store)) == 1
        await self.other.passing(self.starting)


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS])
async def test_a_container_that_the_disk_keeps_closed_is_given_up(tmp_path: Path, error: int) -> None:
    """Behaviour 94: its log has failed, and nothing can be written to open it again."""
    both = Takeover(tmp_path)
    await both.begin()
    epoch = manifest_in(both.store)["epoch"]
    both.owner.refuse(error=error)
    both.owner.fail_log()
    await both.until(lambda: "could not be opened again" in both.owner.server.health())
    assert await both.owner.content() == b"one"
    await both.until_given_up()
    await both.until_taken_over()
    assert manifest_in(both.store)["epoch"] == epoch + 1
    assert await both.other.content() == b"one"
    await both.other.stored_more(b", two")
    await both.other.stop()


@pytest.mark.asyncio
async def test_a_claim_that_the_disk_does_not_take_is_given_up(tmp_path: Path) -> None:
    """The container is claimed again after its log has failed, and that is written into the folder first."""
    both = Takeover(tmp_path)
    await both.begin()
    both.owner.refuse(name="claim.json")
    both.owner.fail_log()
    await both.until_given_up()
    await both.until_taken_over()
    assert await both.other.content() == b"one"
    await both.other.stop()


@pytest.mark.asyncio
async def test_after_a_claim_that_only_the_store_knows_the_other_one_waits_for_the_lease(tmp_path: Path) -> None:
    """The disk fails between the two notes of a claim: the manifest cannot be given back."""
    both = Takeover(tmp_path)
    await both.begin()
    owner, epoch = both.owner, manifest_in(both.store)["epoch"]
    owner.disk.refuses = lambda _step, path, is_change: (
        is_change and path.name.startswith("claim.json") and manifest_in(both.store)["epoch"] > epoch
    )
    owner.fail_log()
    await both.until_given_up()
    assert not manifest_in(both.store)["is_released"]
    assert both.starting is not None
    await both.other.passing(both.starting)
    assert await both.other.content() == b"one"
    await both.other.stop()


@pytest.mark.asyncio
async def test_a_damaged_checkpoint_that_cannot_be_set_aside_is_given_up(tmp_path: Path) -> None:
    both = Takeover(tmp_path)
    await both.begin()
    opened = both.owner.server.opened
    await opened.flusher.checkpoint()
    path = both.owner.folder / "containers" / "0000" / "checkpoint.db"
    both.owner.disk.replace_content(path, bytes(len(both.owner.disk.content(path))))
    both.owner.refuse()
    with pytest.raises(StorageError):
        await asyncio.to_thread(opened.checkpoints.verify)
    await both.until_given_up()
    await both.until_taken_over()
    assert await both.other.content() == b"one"
    await both.other.stop()


@pytest.mark.asyncio
async def test_a_checkpoint_that_cannot_be_saved_is_told_and_given_up_once_the_log_is_full(tmp_path: Path) -> None:
    """Appends are stored until then: the log is in the store. Nothing of it can be recycled."""
    both = Takeover(tmp_path)
    await both.begin()
    owner, content = both.owner, b"one"
    owner.refuse(name="checkpoint")
    opened = owner.server.opened
    with pytest.raises((StorageError, OSError)):
        await opened.flusher.checkpoint()
    await both.until(lambda: "the disk has refused the checkpoint" in owner.server.health())
    for _ in range(10):
        owner.clock.move(LEASE_S / 3)
        both.other.clock.move(LEASE_S / 3)
        await owner.stored_more(b".")
        content += b"."
    assert owner.server.failure is None

    async with await Peer.connect(owner.server.address) as peer:
        info = await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)
        while True:
            (outcome,) = await peer.settled(await peer.append(info.segment_id, bytes(60_000)))
            if not isinstance(outcome, Stored):
                break
            content += bytes(60_000)
    assert outcome is ErrorCode.NO_SPACE
    await both.until_given_up()
    await both.until_taken_over()
    assert await both.other.content() == content
    await both.other.until(lambda: not both.other.server.health())
    await both.other.stored_more(b", two")
    await both.other.stop()


@pytest.mark.asyncio
async def test_with_nobody_who_waits_reads_continue_until_the_disk_works_again(tmp_path: Path) -> None:
    """Behaviour 83: a server that ended would not even answer these. The lease of one that is dead does not move."""
    store = MemoryObjectStore()
    dead = Site(tmp_path / "dead", store, wal=REMOTE)
    await dead.start()
    await dead.stored(b"one")
    await dead.killed()
    owner = Owner(store)
    await owner.start()
    assert len(leases_in(store)) == 2
    owner.refuse()
    owner.fail_log()
    end_s = owner.clock.monotonic_s() + 20 * LEASE_S
    await owner.until(lambda: owner.clock.monotonic_s() > end_s)
    assert "could not be opened again" in owner.server.health()
    assert await owner.content() == b"one"
    assert owner.server.failure is None
    owner.heal()
    await owner.until(lambda: not owner.server.health())
    await owner.stored_more(b", two")
    assert await owner.content() == b"one, two"
    await owner.stop()


@pytest.mark.asyncio
async def test_one_whose_disk_takes_nothing_does_not_stand_by(tmp_path: Path) -> None:
    """Nobody gives up for it: it ends before it has a lease."""
    store = MemoryObjectStore()
    serving, sick = Site(tmp_path / "serving", store, wal=REMOTE), Owner(store)
    sick.standby = True
    await sick.start()
    await sick.stop()
    await serving.start()
    before = leases_in(store)
    sick.refuse(error=errno.ENOSPC, name="probe")
    with pytest.raises(DiskUnavailableError, match="cannot be written"):
        await sick.start(serving.clock)
    assert leases_in(store) == before
    await serving.stop()


# --- the rule alone ---


class Rule:
    """A server that is told by the test what its disk does, and who waits."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.failure: DiskFailure | None = None
        # How often another server has renewed its lease, and whether it does.
        self.renewals_count = 0
        self.is_waited_for = True
        self.further: dict[str, str] = {}
        self.is_store_away = False
        self.looks_count = 0
        self.given_up: list[OwnershipReleasedError] = []
        hand_over = HandOver(
            clock=self.clock,
            patience_s=3.0,
            failure=lambda: self.failure,
            other_leases=self._other_leases,
            give_up=self.given_up.append,
        )
        self.task = asyncio.ensure_future(hand_over.run())

    async def _other_leases(self) -> dict[str, str]:
        self.looks_count += 1
        if self.is_store_away:
            raise StoreUnavailableError("nobody answers")
        self.renewals_count += self.is_waited_for
        return {"workers/dead": "unchanged", "workers/other": str(self.renewals_count), **self.further}

    def fail(self) -> None:
        self.failure = DiskFailure(self.clock.monotonic_s(), "Input/output error")


@contextmanager
def rule() -> Iterator[Rule]:
    started = Rule()
    try:
        yield started
    finally:
        started.task.cancel()


@pytest.mark.asyncio
async def test_it_looks_for_nobody_while_the_disk_works() -> None:
    with rule() as server:
        for _ in range(10):
            await server.clock.advance(3.0)
        assert server.looks_count == 0


@pytest.mark.asyncio
async def test_it_gives_up_what_has_failed_for_its_patience_if_somebody_waits() -> None:
    with rule() as server:
        await server.clock.advance(0.0)
        await server.clock.advance(1.0)
        server.fail()
        await server.clock.advance(2.0)
        assert server.looks_count == 1
        assert not server.given_up
        await server.clock.advance(3.0)
        (error,) = server.given_up
        assert "Input/output error" in str(error)
        assert server.task.done()


@pytest.mark.asyncio
async def test_it_begins_to_look_again_after_the_disk_has_worked() -> None:
    with rule() as server:
        server.fail()
        await server.clock.advance(3.0)
        server.failure = None
        await server.clock.advance(3.0)
        server.fail()
        await server.clock.advance(3.0)
        assert not server.given_up
        await server.clock.advance(3.0)
        assert len(server.given_up) == 1


@pytest.mark.asyncio
async def test_it_waits_for_somebody_who_waits() -> None:
    with rule() as server:
        server.is_waited_for = False
        server.fail()
        for _ in range(5):
            await server.clock.advance(3.0)
        assert not server.given_up
        server.is_waited_for = True
        await server.clock.advance(3.0)
        assert len(server.given_up) == 1


@pytest.mark.asyncio
async def test_a_store_that_does_not_answer_says_nothing_of_who_waits() -> None:
    with rule() as server:
        server.fail()
        server.is_store_away = True
        for _ in range(5):
            await server.clock.advance(3.0)
        assert not server.task.done()
        server.is_store_away = False
        await server.clock.advance(3.0)
        assert not server.given_up
        await server.clock.advance(3.0)
        assert len(server.given_up) == 1


@pytest.mark.asyncio
async def test_one_that_has_only_just_come_does_not_count_as_waiting() -> None:
    """It may be a start that is refused at once; one that waits renews its lease."""
    with rule() as server:
        server.is_waited_for = False
        server.fail()
        await server.clock.advance(3.0)
        server.further = {"workers/new": "1"}
        await server.clock.advance(3.0)
        assert not server.given_up


# --- real processes ---


def fill(folder: Path) -> None:
    """Write into a file system until nothing more fits."""
    with (folder / "ballast").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_process_on_a_full_disk_ends_and_the_other_one_serves(tmp_path: Path, moto: MotoServer) -> None:
    """Behaviour 94: a writer is refused once the log is full, waits, and continues with the standby."""
    settings = {
        "MILLRACE_WAL_FILE_SIZE_BYTES": str(MIB),
        "MILLRACE_WAL_FILES_MAX": "4",
        "MILLRACE_WAL_BATCH_SIZE_BYTES_MAX": str(MIB // 4),
        "MILLRACE_WAL_RUN_SIZE_BYTES_MAX": str(MIB // 4),
        "MILLRACE_WAL_HEADROOM_BYTES": str(MIB // 8),
        "MILLRACE_CONTAINER_CHECKPOINT_INTERVAL_S": "0.1",
    }
    events = [number.to_bytes(4, "big") * 8192 for number in range(200)]
    with (
        small_disk(tmp_path / "first", 4 * MIB) as disk,
        pair(moto, tmp_path, settings=settings) as (first, second),
        millrace.blocking.connect(f"{first.address},{second.address}") as client,
    ):
        client.create_stream("shop/orders")
        with client.writer("shop/orders", writer_id="till") as writer:
            writer.write(events[0]).result()
            fill(disk)
            for event in events[1:]:
                writer.write(event)
            code, said = first.ended()
            assert code == 1, said
            assert "a standby is ready" in said
            second.serves()
        with client.reader("shop/orders", end=millrace.TAIL) as reader:
            assert [event.value for event in reader] == events
