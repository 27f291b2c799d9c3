"""A server kills itself at each step of a transaction: what it leaves is whole, and its clients have one outcome.

    begun -> part made -> appended -> (prepared) -> commit queued -> written -> synced -> answered, applied
                                                          -> checkpointed -> flushed -> part deleted

What is left is looked at by two servers, one after the other, on a copy of the folder, before anybody tries again. Then
the server starts where it died. Its client, which has waited, continues by itself.
"""

# Nobody needs to look at the future of a write: flush and commit raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.transactions.transaction import Transaction
from millrace.server.app import Server
from millrace.server.offline.findings import Verification
from millrace.server.offline.verification import verify_folder
from millrace.server.tier2 import parse_chunk_name
from tests.client.write.writers import values_of
from tests.crash import deadly_server
from tests.crash.deadly_server import APPENDED, CHECKPOINT, DELETE, MARK, PUBLISH, Point, arm, disarm
from tests.crash.patience import PATIENT
from tests.crash.processes import ServerProcess
from tests.support.folders import tmp_path
from tests.support.servers import ENVIRONMENT_OF_BUSY, server_options
from tests.support.waiting import PATIENCE_S, until

__all__ = ["tmp_path"]

NAME: Final = "order-7"
STREAMS: Final = ("crash/orders", "crash/stock")
NOISE: Final = "crash/noise"
BEFORE: Final = b"before"
EVENTS: Final = [MARK + b"-%d" % number for number in range(20)]
TWO: Final = millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(2))

BEGUN, ADDED, PREPARED = "TransactionBegun", "PartsAdded", "TransactionPrepared"
COMMITTED, ENDED = "TransactionCommitted", "TransactionsEnded"
ANSWERED: Final = "answered"

# What a kill of the process leaves of a record: the system still writes what it was given.
LEFT: Final[Mapping[str, bool]] = {"queued": False, "torn": False, "written": True, "synced": True, "applied": True}

STATES: Final[Mapping[str, tuple[str, str]]] = {
    BEGUN: ("unknown", "open"),
    ADDED: ("open", "open"),
    APPENDED: ("open", "open"),
    PREPARED: ("open", "prepared"),
    COMMITTED: ("open", "committed"),
    ENDED: ("open", "aborted"),
}
"""The state of the transaction where a record is not left, and where it is."""

QUIET: Final = {
    **{name: value for name, value in ENVIRONMENT_OF_BUSY.items() if name.startswith("MILLRACE_WAL_")},
    "MILLRACE_CONTAINER_FLUSH_AGE_S": "3600",
    "MILLRACE_CONTAINER_CHECKPOINT_INTERVAL_S": "3600",
}
"""All is in the log; the event loop writes and syncs what is alone."""
THREAD: Final = {**QUIET, "MILLRACE_WAL_LONE_SIZE_BYTES_MAX": "0"}
"""All is in the log, and its thread writes every batch."""


@dataclass
class Scene:
    """A server in its folder, and a client with a transaction over two streams."""

    folder: Path
    environment: Mapping[str, str]
    process: ServerProcess = field(init=False)

    async def start(self, *, listen: str = "127.0.0.1:0") -> None:
        self.process = await ServerProcess.start(
            self.folder, environment=dict(self.environment), module=deadly_server.__name__, listen=listen
        )

    async def start_again(self) -> None:
        disarm(self.folder)
        await self.start(listen=self.process.address)

    async def wait_for_death(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.process.process.communicate()
        assert self.process.process.returncode == -9, self.process.said

    def arm(self, point: Point, *whats: str) -> None:
        """Arm a point that one of these is about."""
        if point.what in whats:
            arm(self.folder, point)

    async def states_left(self) -> list[str]:
        """Return the state of the transaction on two servers, one after the other, on a copy of the folder.

        Both must show all of it or nothing, in each stream, and nothing may be damaged.
        """
        copied = self.folder.with_name("copied")
        await asyncio.to_thread(shutil.copytree, self.folder, copied)
        states = []
        for _ in range(2):
            async with Server(server_options(copied)) as server, millrace.connect(server.address) as client:
                states.append(str((await client.transaction_outcome(NAME)).state))
                await check_visible(client, is_committed=states[-1] == "committed")
        await check_folder(copied)
        await asyncio.to_thread(shutil.rmtree, copied)
        return states


async def check_visible(client: Client, *, is_committed: bool) -> None:
    """Assert that the streams show all of the transaction, in the order of its keys, or nothing."""
    for stream in STREAMS:
        async with client.reader(stream, end=millrace.TAIL) as reader:
            events = [(event.key, event.value) async for event in reader if event.value != BEFORE]
        assert sorted(events, key=lambda event: EVENTS.index(event[1])) == (keyed() if is_committed else [])
        for key in {key for key, _ in events}:
            numbers = [EVENTS.index(value) for each, value in events if each == key]
            assert numbers == sorted(numbers)
        assert (await values_of(client, stream)).count(BEFORE) == 1


async def check_folder(folder: Path) -> None:
    verification = await asyncio.to_thread(lambda: Verification.of(verify_folder(folder)))
    assert not verification.findings, verification.findings


def keyed() -> list[tuple[str, bytes]]:
    return [(f"k{number % 7}", value) for number, value in enumerate(EVENTS)]


@contextlib.asynccontextmanager
async def living(folder: Path, environment: Mapping[str, str]) -> AsyncIterator[tuple[Scene, Client]]:
    """Start a server with two streams that have an event each, and a client that waits for it whenever it is away."""
    asyncio.get_running_loop().set_debug(False)
    scene = Scene(folder, environment)
    await scene.start()
    try:
        async with millrace.connect(scene.process.address, options=PATIENT) as client:
            for stream in STREAMS:
                await client.create_stream(stream, TWO)
                async with client.writer(stream) as writer:
                    writer.write(BEFORE, key="k1")
            await client.create_stream(NOISE)
            yield scene, client
    finally:
        await scene.process.kill()


async def write_all(transaction: Transaction) -> None:
    for stream in STREAMS:
        for key, value in keyed():
            transaction.write(value, key=key, stream=stream)
    await transaction.flush()


async def make_noise(client: Client, process: ServerProcess) -> None:
    """Write to another stream until a server is dead: checkpoints become due, and the log is recycled."""
    async with client.writer(NOISE) as writer:
        while process.process.returncode is None:
            writer.write(bytes(1024))
            await writer.flush()


async def flushed(folder: Path, ids: range, *, count: int) -> None:
    """Wait until so many of these segments have chunks."""

    def are_flushed() -> bool:
        chunks = (parse_chunk_name("/".join(path.parts[-3:])) for path in (folder / "tier2").rglob("*.chunk"))
        return len({chunk.segment_id for chunk in chunks if chunk is not None and chunk.segment_id in ids}) >= count

    await until(are_flushed)


async def begin(client: Client, scene: Scene, point: Point) -> Transaction:
    """Begin a transaction and write to it, over the point if it is about that."""
    scene.arm(point, BEGUN, ADDED, APPENDED)
    transaction = await client.begin_transaction(STREAMS, name=NAME)
    await write_all(transaction)
    return transaction


async def survive(scene: Scene, living: "asyncio.Task[None]", *, states: set[str]) -> None:
    """Wait for the death of a server, look at what is left, and start it again for its client to end."""
    dying = asyncio.create_task(scene.wait_for_death())
    await asyncio.wait([dying, living], return_when=asyncio.FIRST_COMPLETED)
    if not dying.done():
        await living  # answers leave before the batch is applied, so its client may have ended first
    await dying  # a timeout: the server did not come to the point
    left = await scene.states_left()
    assert left[0] == left[1]
    assert left[0] in states
    await scene.start_again()
    async with asyncio.timeout(PATIENCE_S):
        await living


async def check_end(scene: Scene, client: Client, *, state: str) -> None:
    """Assert that all is as it should be at the end, and after one more kill."""
    outcome = await client.transaction_outcome(NAME)
    await check_outcome(client, state=state)
    await scene.process.kill()
    async with Server(server_options(scene.folder)) as server, millrace.connect(server.address) as another:
        await check_outcome(another, state=state)
        assert (await another.transaction_outcome(NAME)).decided_at == outcome.decided_at
    await check_folder(scene.folder)


async def check_outcome(client: Client, *, state: str) -> None:
    """Assert that the transaction is over, and stays as it is whoever asks for what."""
    await check_visible(client, is_committed=state == "committed")
    assert (await client.transaction_outcome(NAME)).state == state
    if state == "committed":
        assert (await client.commit_transaction(NAME)).state == "committed"
        with pytest.raises(millrace.TransactionCommittedError):
            await client.abort_transaction(NAME)
        with pytest.raises(millrace.TransactionCommittedError):
            await client.begin_transaction(STREAMS, name=NAME)
    else:
        assert not await client.abort_transaction(NAME)
        with pytest.raises(millrace.TransactionAbortedError):
            await client.commit_transaction(NAME)
    await check_visible(client, is_committed=state == "committed")


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("when", LEFT)
@pytest.mark.parametrize("what", [BEGUN, ADDED, APPENDED, PREPARED, COMMITTED])
async def test_killed_in_a_step_to_a_commit(tmp_path: Path, what: str, when: str) -> None:
    """Behaviours 28, 29, 31: what is left is whole, in the state that the log names; the client commits it once."""
    point = Point(what, when)
    # Both who write to the log die of each kind of record.
    environment = THREAD if what in {ADDED, COMMITTED} else QUIET

    async def live() -> None:
        transaction = await begin(client, scene, point)
        if what == PREPARED:
            scene.arm(point, PREPARED)
            await transaction.prepare()
        scene.arm(point, COMMITTED)
        await transaction.commit()

    async with living(tmp_path / "data", environment) as (scene, client):
        await survive(scene, asyncio.create_task(live()), states={STATES[what][LEFT[when]]})
        await check_end(scene, client, state="committed")


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("when", LEFT)
async def test_killed_while_it_commits_what_was_prepared(tmp_path: Path, when: str) -> None:
    """Behaviours 30, 31: it is prepared or committed; somebody else commits it by its name meanwhile."""
    point = Point(COMMITTED, when)

    async def live() -> None:
        transaction = await begin(client, scene, point)
        await transaction.prepare()
        scene.arm(point, COMMITTED)
        outcomes = await asyncio.gather(client.commit_transaction(NAME), client.commit_transaction(NAME))
        assert [outcome.state for outcome in outcomes] == ["committed", "committed"]

    async with living(tmp_path / "data", QUIET) as (scene, client):
        states = {"committed" if LEFT[when] else "prepared"}
        await survive(scene, asyncio.create_task(live()), states=states)
        await check_end(scene, client, state="committed")


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("when", LEFT)
@pytest.mark.parametrize("is_prepared", [False, True])
async def test_killed_while_it_aborts(tmp_path: Path, when: str, *, is_prepared: bool) -> None:
    """Behaviours 29, 31: it is there whole, or gone; the client aborts it again."""
    point = Point(ENDED, when)

    async def live() -> None:
        transaction = await begin(client, scene, point)
        if is_prepared:
            await transaction.prepare()
        scene.arm(point, ENDED)
        await transaction.abort()

    async with living(tmp_path / "data", THREAD if is_prepared else QUIET) as (scene, client):
        states = {"aborted" if LEFT[when] else "prepared" if is_prepared else "open"}
        await survive(scene, asyncio.create_task(live()), states=states)
        await check_end(scene, client, state="aborted")


@pytest.mark.slow
@pytest.mark.asyncio
async def test_killed_when_it_has_answered(tmp_path: Path) -> None:
    """Behaviours 5, 31: whoever was told of the commit finds it."""
    async with living(tmp_path / "data", QUIET) as (scene, client):
        transaction = await client.begin_transaction(STREAMS, name=NAME)
        await write_all(transaction)
        await transaction.commit()
        await scene.process.kill()

        assert await scene.states_left() == ["committed", "committed"]
        await scene.start_again()
        await check_end(scene, client, state="committed")


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("state", ["open", "prepared", "committed", "aborted"])
async def test_killed_at_a_checkpoint(tmp_path: Path, state: str, when: str) -> None:
    """Behaviours 31, 46: the state is that of the log, whether the checkpoint knows of it or not."""
    async with living(tmp_path / "data", ENVIRONMENT_OF_BUSY) as (scene, client):

        async def live() -> None:
            transaction = await client.begin_transaction(STREAMS, name=NAME)
            await write_all(transaction)
            if state == "prepared":
                await transaction.prepare()
            elif state == "aborted":
                await transaction.abort()
            elif state == "committed":
                await transaction.commit()
            process = scene.process
            arm(scene.folder, Point(CHECKPOINT, when))
            await make_noise(client, process)
            if state in {"open", "prepared"}:
                await transaction.commit()

        await survive(scene, asyncio.create_task(live()), states={state})
        await check_end(scene, client, state="aborted" if state == "aborted" else "committed")


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", ["part flushed", "merged", "part deleted", "part deleted of an abort"])
async def test_killed_at_a_chunk(tmp_path: Path, what: str, when: str) -> None:
    """Behaviours 31, 46: no byte twice, none missing, wherever the bytes of a part are."""
    is_aborted = what == "part deleted of an abort"
    async with living(tmp_path / "data", ENVIRONMENT_OF_BUSY) as (scene, client):
        process = scene.process

        async def live() -> None:
            transaction = await client.begin_transaction(STREAMS, name=NAME)
            # Ids only rise: those of the streams, that of the noise, that of the transaction, those of its parts.
            (noise,) = (await client.stream_info(NOISE)).open_segments
            of_streams, of_parts = range(1, noise.segment_id), range(transaction.number + 1, 1 << 48)
            await flushed(scene.folder, of_streams, count=len(STREAMS))  # the event that each of them has
            if what == "part flushed":
                arm(scene.folder, Point(PUBLISH, when, of_parts))
            await write_all(transaction)
            if what == "part flushed":
                await make_noise(client, process)
            elif what == "merged":
                arm(scene.folder, Point(PUBLISH, when, of_streams))
            else:
                await flushed(scene.folder, of_parts, count=1)
                arm(scene.folder, Point(DELETE, when, of_parts))
            await (transaction.abort() if is_aborted else transaction.commit())
            await make_noise(client, process)

        states = {"aborted" if is_aborted else "open" if what == "part flushed" else "committed"}
        await survive(scene, asyncio.create_task(live()), states=states)
        await check_end(scene, client, state="aborted" if is_aborted else "committed")
