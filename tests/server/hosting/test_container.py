"""The life of a container in a host, without a network: what each state does, and what leads out of it."""

import asyncio
import errno
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from millrace.server.errors import OwnerFencedError, ShuttingDownError, StorageError
from millrace.server.host.machine import Machine
from millrace.server.hosting.host import Host
from millrace.server.hosting.life import (
    CLAIMING,
    CLOSED,
    CLOSING,
    FENCED,
    OPENING,
    RECOVERING,
    SERVING,
    STANDBY,
    LifeState,
)
from millrace.server.kinds.segments.commands import SegmentCommands
from millrace.server.object_store import ObjectStoreOptions
from millrace.server.ownership import manifest_key
from tests.support.clock import ManualClock
from tests.support.files import SteppedFileSystem
from tests.support.object_store import MemoryObjectStore
from tests.support.servers import QUIET, SMALL_WAL, server_options
from tests.support.sites import LEASE_S, RESERVE_BYTES, URL, leases_in, manifest_in, pass_time
from tests.support.storage import FaultyStorage
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

FOLDER: Final = Path("/data")
REMOTE: Final = replace(SMALL_WAL, place="object", puts_per_s_max=0.0)
FENCE: Final = OwnerFencedError("another server has taken over")


class Hosting:
    """A host on a machine in memory, and what it reports.

    Attributes:
        reopened_in: the state in which each container that was opened again is reported.
        owners: the texts that a standby has reported.
    """

    def __init__(self, **options: Any) -> None:
        self.files = SteppedFileSystem()
        self.clock = ManualClock()
        self.failures: list[tuple[str, BaseException]] = []
        self.reopened_in: list[LifeState] = []
        self.owners: list[str] = []
        store = options.pop("given_store", None)
        self.host = Host(
            server_options(FOLDER, container=QUIET, **options).for_storage(),
            Machine(files=self.files, clock=self.clock),
            storage=None if store is not None else FaultyStorage(),
            store=store,
            on_failure=lambda name, error: self.failures.append((name, error)),
            on_reopened=self._reopened,
        )
        self.container = self.host.container

    async def _reopened(self) -> None:
        self.reopened_in.append(self.container.state)

    async def open(self) -> None:
        await self.host.open(on_standby=self.owners.append)

    async def close(self) -> None:
        if self.container.state is CLOSED:
            return
        self.host.stop()
        await self.host.end_recovery()
        await self.host.close(flush_s=0.0)
        await self.host.release(release_s=10.0)

    async def create(self, name: str) -> None:
        assert self.container.opened is not None
        await SegmentCommands(self.container.opened.container).create(name)

    def fail_log(self) -> None:
        assert self.container.opened is not None
        self.container.opened.container.log_failed(OSError(errno.EIO, "no answer"))

    async def recovery_ended(self) -> None:
        """Let the disk work and time pass until the attempts to open the container again have ended by themselves."""
        self.files.refuses = lambda _step, _path, _is_change: False
        tasks = reopening_tasks()
        assert tasks
        await pass_time(lambda: all(task.done() for task in tasks), self.clock)

    async def passing(self, work: Coroutine[Any, Any, None], *clocks: ManualClock) -> None:
        """Do something while time passes here and on other clocks."""
        running = asyncio.ensure_future(work)
        await pass_time(running.done, self.clock, *clocks)
        await running


def reopening_tasks() -> "list[asyncio.Task[Any]]":
    return [task for task in asyncio.all_tasks() if task.get_name() == "reopen"]


@asynccontextmanager
async def opened() -> AsyncIterator[Hosting]:
    hosting = Hosting()
    await hosting.open()
    try:
        yield hosting
    finally:
        await hosting.close()


async def test_it_is_claimed_opened_served_and_closed() -> None:
    hosting = Hosting()
    assert hosting.container.state is CLAIMING
    hosting.files.stall(folder="wal")
    opening = asyncio.ensure_future(hosting.open())
    await until(hosting.files.stalled.is_set)
    assert hosting.container.state is OPENING
    assert hosting.host.health() == "the container is being recovered"
    hosting.files.resume()
    await opening
    assert hosting.container.state is SERVING
    assert not hosting.host.health()
    await hosting.create("raw/a")

    assert hosting.host.stop()
    assert not hosting.host.stop()
    assert hosting.container.state is CLOSING
    await hosting.create("raw/b")  # what is under way is finished
    hosting.host.refuse_requests()
    with pytest.raises(ShuttingDownError):
        await hosting.create("raw/c")
    await hosting.close()
    assert hosting.container.state is CLOSED
    assert hosting.host.health() == "the server is shutting down"
    assert not hosting.failures


async def test_a_start_that_fails_ends_closed() -> None:
    hosting = Hosting()
    hosting.files.error = errno.EIO
    hosting.files.refuses = lambda _step, path, is_change: is_change and path.name.startswith("wal")
    with pytest.raises((StorageError, OSError)):
        await hosting.open()
    await hosting.close()
    assert hosting.container.state is CLOSED


async def test_after_its_log_has_failed_it_is_opened_again_and_serves_once_connections_have_ended() -> None:
    async with opened() as hosting:
        await hosting.create("raw/a")
        before = hosting.container.opened
        hosting.fail_log()
        assert hosting.container.state is RECOVERING
        assert hosting.container.opened is before
        await until(lambda: hosting.container.state is SERVING)
        assert hosting.container.opened is not before
        assert hosting.reopened_in == [RECOVERING]
        await hosting.create("raw/b")
        assert not hosting.failures


async def test_one_attempt_is_made_at_a_time_however_often_the_log_fails() -> None:
    async with opened() as hosting:
        before = hosting.container.opened
        hosting.fail_log()
        hosting.fail_log()
        assert len(reopening_tasks()) == 1
        await until(lambda: hosting.container.state is SERVING)
        assert hosting.container.opened is not before
        assert hosting.reopened_in == [RECOVERING]


async def test_a_stop_ends_the_attempts_to_open_it_again() -> None:
    async with opened() as hosting:
        before = hosting.container.opened
        hosting.files.error = errno.EIO
        hosting.files.refuses = lambda _step, _path, is_change: is_change
        hosting.fail_log()
        await until(lambda: "could not be opened again" in hosting.host.health())
        assert hosting.container.disk_failure is not None
        hosting.host.stop()
        assert hosting.container.disk_failure is None
        await hosting.recovery_ended()
        assert hosting.container.opened is before
        assert not hosting.reopened_in


async def test_a_log_that_fails_after_the_end_is_not_opened_again() -> None:
    """A disk that does not answer is not waited for at shutdown; its log reports later."""
    async with opened() as hosting:
        last = hosting.container.opened
    assert last is not None
    last.container.log_failed(OSError(errno.EIO, "late"))
    await asyncio.sleep(0)
    assert hosting.container.state is CLOSED
    assert hosting.container.opened is None
    assert not hosting.failures


async def test_one_that_is_fenced_refuses_requests_ends_the_server_and_is_not_opened_again() -> None:
    async with opened() as hosting:
        before = hosting.container.opened
        hosting.container.fenced(FENCE)
        assert hosting.container.state is FENCED
        assert hosting.failures == [("ownership", FENCE)]
        with pytest.raises(OwnerFencedError):
            await hosting.create("raw/a")
        hosting.container.fenced(OwnerFencedError("a later reason"))
        hosting.fail_log()
        await asyncio.sleep(0)
        assert hosting.container.state is FENCED
        assert hosting.container.opened is before
        assert hosting.container.fence is FENCE
        assert len(hosting.failures) == 1
        assert "taken over" in hosting.host.health()


async def test_one_that_is_fenced_while_it_is_opened_again_is_not_tried_any_more() -> None:
    async with opened() as hosting:
        hosting.files.error = errno.EIO
        hosting.files.refuses = lambda _step, _path, is_change: is_change
        hosting.fail_log()
        await until(lambda: "could not be opened again" in hosting.host.health())
        hosting.container.fenced(FENCE)
        await hosting.recovery_ended()
        assert hosting.container.state is FENCED
        assert not hosting.reopened_in


# --- over an object store ---


def remote(store: MemoryObjectStore) -> Hosting:
    objects = ObjectStoreOptions(lease_s=LEASE_S, reserve_bytes=RESERVE_BYTES)
    return Hosting(given_store=store, store=URL, wal=REMOTE, objects=objects, standby=True, shutdown_s=20.0)


@asynccontextmanager
async def standby(store: MemoryObjectStore) -> AsyncIterator[tuple[Hosting, Hosting, "asyncio.Future[None]"]]:
    """Yield one that serves, one that waits for it, and the start of the latter."""
    first, second = remote(store), remote(store)
    await first.passing(first.open())
    starting = asyncio.ensure_future(second.open())
    await pass_time(lambda: second.container.state is STANDBY, first.clock, second.clock)
    try:
        yield first, second, starting
    finally:
        await second.passing(second.close(), first.clock)
        await first.passing(first.close())


async def test_a_standby_names_the_owner_once_and_takes_over_after_its_end() -> None:
    store = MemoryObjectStore()
    async with standby(store) as (first, second, starting):
        await first.create("raw/a")
        assert second.host.statistics().is_standing_by
        assert second.owners == [second.host.health()]
        assert second.owners[0].startswith("standing by: ")
        assert second.container.opened is None
        await first.passing(first.close(), second.clock)
        await pass_time(starting.done, second.clock)
        await starting
        assert second.container.state is SERVING
        assert not second.host.statistics().is_standing_by
        assert len(second.owners) == 1


async def test_a_standby_whose_lease_is_ended_stops_waiting() -> None:
    """It could never claim with that lease; the owner serves on."""
    store = MemoryObjectStore()
    async with standby(store) as (first, second, starting):
        claim = manifest_in(store)["claim_id"]
        owner = manifest_in(store)["claimant"]["worker_id"]
        (lease,) = [key for key in leases_in(store) if owner not in key]
        await store.delete([lease])
        await pass_time(starting.done, first.clock, second.clock)
        with pytest.raises(OwnerFencedError, match="ended its lease, or somebody deleted it"):
            await starting
        assert second.container.state is FENCED
        assert [name for name, _ in second.failures] == ["ownership"]
        assert manifest_in(store)["claim_id"] == claim
        await first.create("raw/a")


async def test_one_whose_lease_is_ended_is_fenced_and_gives_nothing_back() -> None:
    store = MemoryObjectStore()
    hosting = remote(store)
    await hosting.passing(hosting.open())
    for key in leases_in(store):
        await store.delete([key])
    await pass_time(lambda: hosting.container.state is FENCED, hosting.clock)
    assert hosting.container.may_be_superseded
    await hosting.passing(hosting.close())
    assert not manifest_in(store)["is_released"]


async def test_one_whose_manifest_is_deleted_is_fenced_and_keeps_its_lease() -> None:
    """The next claim rebuilds the manifest, and finds in the lease which batches were acknowledged."""
    store = MemoryObjectStore()
    hosting = remote(store)
    await hosting.passing(hosting.open())
    await hosting.create("raw/a")
    assert hosting.container.opened is not None
    await store.delete([manifest_key(0)])
    with pytest.raises(OwnerFencedError, match="deleted or damaged"):
        await hosting.container.opened.environment.ownership.raise_epoch()
    assert hosting.container.state is FENCED
    assert [name for name, _ in hosting.failures] == ["ownership"]
    leases = leases_in(store)
    assert len(leases) == 1
    await hosting.passing(hosting.close())
    assert leases_in(store) == leases
