"""Servers that stand by for another one whose log is in the object store."""

import asyncio
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

import millrace
from millrace.model.address import Address
from millrace.server.errors import ConfigurationError, OwnerFencedError, SettingError
from millrace.server.process import start_as_process
from millrace.wire import messages as m
from tests.support.faulty_store import FaultyStore
from tests.support.folders import tmp_path
from tests.support.object_store import MemoryObjectStore
from tests.support.pairs import pair
from tests.support.protocol import Peer, Stored
from tests.support.s3 import MotoServer
from tests.support.servers import SMALL_WAL, server_options
from tests.support.sites import LEASE_S, Site, leases_in, manifest_in
from tests.support.waiting import until

__all__ = ["tmp_path"]

pytestmark = [pytest.mark.slow]

REMOTE: Final = replace(SMALL_WAL, place="object", puts_per_s_max=0.0)


def site(folder: Path, store: MemoryObjectStore) -> Site:
    return Site(folder, store, wal=REMOTE, standby=True)


async def stands_by(waiting: Site, *others: Site) -> "asyncio.Future[Any]":
    """Start a server that is to wait, and return its start once it does."""
    waiting.server = waiting._server()
    return await until_it_stands_by(waiting, waiting.server.start(), *others)


async def until_it_stands_by(waiting: Site, start: Coroutine[Any, Any, Any], *others: Site) -> "asyncio.Future[Any]":
    """Return a start of the server once it waits, while time passes for all."""
    starting = asyncio.ensure_future(waiting.passing(start, *(other.clock for other in others)))
    await until(lambda: waiting.server.health().startswith("standing by: "))
    return starting


@pytest.mark.asyncio
async def test_it_lets_nobody_in_while_another_serves_and_takes_over_when_that_is_killed(tmp_path: Path) -> None:
    """Behaviour 94: with all that was acknowledged."""
    store = MemoryObjectStore()
    first, second = site(tmp_path / "first", store), site(tmp_path / "second", store)
    await first.start()
    await first.stored(b"one")
    starting = await stands_by(second, first)
    assert second.server.health().startswith("standing by: ")
    assert "first) serves since" in second.server.health()
    with pytest.raises(ConnectionRefusedError):
        await Peer.connect(second.server.address)
    first.clock.move(10 * LEASE_S)
    # Its lease is renewed, twice if an attempt was under way before: others may have seen that one, and none since.
    await first.until(lambda: not first.server.health())
    await first.stored_more(b", two")

    epoch = manifest_in(store)["epoch"]
    await first.killed()
    await starting
    assert manifest_in(store)["epoch"] == epoch + 1
    assert await second.content() == b"one, two"
    assert not second.server.health()
    await second.stop()


@pytest.mark.asyncio
async def test_one_that_was_superseded_ends_and_does_not_stand_by(tmp_path: Path) -> None:
    """Behaviour 91: its connections must not wait for it. A supervisor starts it again."""
    store = MemoryObjectStore()
    first, second = site(tmp_path / "first", store), site(tmp_path / "second", store)
    await first.start()
    await first.stored(b"one")
    async with await Peer.connect(first.server.address) as peer:
        info = await peer.ask(m.GetSegment(0, "raw/a"), m.SegmentInfo)
        await second.start()  # no time passes for the first one
        (outcome,) = await peer.settled(await peer.append(info.segment_id, b", late"))
        assert not isinstance(outcome, Stored)
    with pytest.raises(OwnerFencedError, match="second"):
        await first.passing(first.server.wait_for_end())
    await first.stop()

    starting = await stands_by(first, second)
    await second.stop()
    await starting
    assert await first.content() == b"one"
    await first.stop()


@pytest.mark.asyncio
async def test_of_two_that_begin_with_an_empty_prefix_one_serves_and_one_stands_by(tmp_path: Path) -> None:
    """Neither is refused as another server: who comes second becomes one of the first one's server."""
    store = MemoryObjectStore()
    sites = [site(tmp_path / name, store) for name in ("first", "second")]
    starts = []
    for each in sites:
        each.server = each._server()
        starts.append(asyncio.ensure_future(each.server.start()))

    def is_decided() -> bool:
        for each in sites:
            each.clock.move(0.1)
        return any(start.done() for start in starts) and any(
            each.server.health().startswith("standing by: ") for each in sites
        )

    await until(is_decided)
    (serving,) = [each for each, start in zip(sites, starts, strict=True) if start.done()]
    (waiting,) = [start for start in starts if not start.done()]
    await serving.stored(b"one")
    await serving.stop()
    (other,) = [each for each in sites if each is not serving]
    await other.passing(waiting)
    assert await other.content() == b"one"
    await other.stop()


@pytest.mark.asyncio
async def test_a_start_that_is_cancelled_while_it_stands_by_gives_all_back(tmp_path: Path) -> None:
    store = MemoryObjectStore()
    first, second = site(tmp_path / "first", store), site(tmp_path / "second", store)
    await first.start()
    claim = manifest_in(store)["claim_id"]
    starting = asyncio.ensure_future(second.server.start())

    def is_waiting() -> bool:
        for each in (first, second):
            each.clock.move(0.1)
        return second.server.health().startswith("standing by: ")

    await until(is_waiting)
    assert len(leases_in(store)) == 2
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first.passing(starting, second.clock)
    assert manifest_in(store)["claim_id"] == claim
    assert len(leases_in(store)) == 1
    await first.stop()


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_a_port_that_is_taken_at_the_takeover_is_named_and_the_claim_given_back(tmp_path: Path) -> None:
    """The next one need not wait, and has all that was acknowledged."""
    store = MemoryObjectStore()
    first, second = site(tmp_path / "first", store), site(tmp_path / "second", store)
    await first.start()
    await first.stored(b"one")
    starting = asyncio.ensure_future(second.server.start())

    def passes(condition: Callable[[], bool]) -> bool:
        for each in (first, second):
            each.clock.move(0.1)
        return condition()

    await until(lambda: passes(lambda: second.server.health().startswith("standing by: ")))
    epoch = manifest_in(store)["epoch"]
    taken = Address.parse(second.server.address, default_port=0)
    with socket.create_server((taken.host, taken.port)):
        await first.stop()
        await until(lambda: passes(lambda: manifest_in(store)["epoch"] > epoch))
        # No time passes any more: what is given back must not come too late.
        with pytest.raises(ConfigurationError, match=f"cannot listen on {taken}: Address already in use"):
            await starting
    manifest = manifest_in(store)
    assert (manifest["epoch"], manifest["is_released"], leases_in(store)) == (epoch + 1, True, [])
    await first.start()
    assert await first.content() == b"one"
    await first.stop()


@pytest.fixture
def own_signals() -> Iterator[None]:
    """Give SIGINT back what a server that is a process of its own takes from it."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("own_signals")
@pytest.mark.asyncio
async def test_one_whose_own_task_fails_while_it_stands_by_ends_with_that_error(tmp_path: Path) -> None:
    store = MemoryObjectStore()
    is_broken = False

    def breaks(operation: str) -> None:
        if is_broken and operation == "replace":
            raise RuntimeError("not foreseen")

    first, second = (
        site(tmp_path / "first", store),
        Site(tmp_path / "second", FaultyStore(store, schedule=breaks), wal=REMOTE, standby=True),
    )
    await first.start()
    await first.stored(b"one")
    second.server = second._server()
    starting = await until_it_stands_by(second, start_as_process(second.server), first)
    is_broken = True
    with pytest.raises(RuntimeError, match="not foreseen"):
        await starting
    assert await first.content() == b"one"
    await first.stop()


@pytest.mark.usefixtures("own_signals")
@pytest.mark.asyncio
async def test_one_whose_lease_is_ended_while_it_stands_by_ends_with_that_error(tmp_path: Path) -> None:
    store = MemoryObjectStore()
    first, second = site(tmp_path / "first", store), site(tmp_path / "second", store)
    await first.start()
    (lease,) = leases_in(store)
    second.server = second._server()
    starting = await until_it_stands_by(second, start_as_process(second.server), first)
    (own,) = [each for each in leases_in(store) if each != lease]
    await store.delete([own])
    with pytest.raises(OwnerFencedError, match="another server ended its lease, or somebody deleted it"):
        await starting
    assert leases_in(store) == [lease]
    await first.stop()


def test_a_log_on_a_local_disk_has_no_standby(tmp_path: Path) -> None:
    """It would not have what was acknowledged."""
    with pytest.raises(SettingError, match=r"standby is true; it must be false where the log is on a local disk"):
        server_options(tmp_path, standby=True)


# --- real processes ---


def test_a_client_of_both_continues_with_the_standby(tmp_path: Path, moto: MotoServer) -> None:
    """Behaviour 94: a named writer and a reader, over kill -9 of the server that served them."""
    with (
        pair(moto, tmp_path) as (first, second),
        millrace.blocking.connect(f"{second.address},{first.address}") as client,
    ):
        client.create_stream("shop/orders")
        with client.writer("shop/orders", writer_id="till") as writer, client.reader("shop/orders") as reader:
            writer.write(b"one", key="k").result()
            assert next(iter(reader)).value == b"one"
            first.kill()
            writer.write(b"two", key="k").result()
            assert next(iter(reader)).value == b"two"
        second.serves()
        with client.reader("shop/orders", end=millrace.TAIL) as reader:
            assert [event.value for event in reader] == [b"one", b"two"]


def test_a_port_that_is_taken_at_the_takeover_ends_the_process_with_one_line(tmp_path: Path, moto: MotoServer) -> None:
    with pair(moto, tmp_path) as (first, second):
        taken = Address.parse(second.address, default_port=0)
        with socket.create_server((taken.host, taken.port)):
            assert first.end(signal.SIGTERM) == 0
            assert second.ended() == (1, f"error: cannot listen on {taken}: Address already in use\n")


def test_sigterm_ends_one_that_stands_by(tmp_path: Path, moto: MotoServer) -> None:
    with pair(moto, tmp_path) as (first, second):
        assert second.end(signal.SIGTERM) == 0
        assert first.end(signal.SIGTERM) == 0
