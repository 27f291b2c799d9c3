"""The record that ends a transaction is cut at any byte: the decision was made whole, or can still be made, by anybody.

A server that has just written the record is copied with what is on its disk. In each copy the log ends within the
record, as a kill or a loss of power in its writing leaves it. Then two clients commit and abort the transaction by its
name at the same time.
"""

# Nobody needs to look at the future of a write: flush and commit raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.transactions.transaction import Transaction
from millrace.server.app import Server
from tests.client.scaling import scale
from tests.client.write.writers import values_of
from tests.support.files import MemoryFileSystem
from tests.support.folders import tmp_path
from tests.support.servers import server_options

__all__ = ["tmp_path"]

NAME: Final = "order-7"
STREAMS: Final = ("crash/orders", "crash/stock")
READ: Final = "crash/read"
CURSOR: Final = "job"
EVENTS: Final = [b"%d" % number for number in range(20)]
STEP_BYTES: Final = 13
"""Between the cuts: with it they fall into each field of a record in turn."""


@asynccontextmanager
async def serving(folder: Path, files: MemoryFileSystem) -> AsyncIterator[Client]:
    async with Server(server_options(folder), files=files) as server, millrace.connect(server.address) as client:
        yield client


@dataclass(frozen=True, slots=True)
class Ended:
    """The disk before and after the end of a transaction, and the range of the log that its record is in."""

    before: MemoryFileSystem
    after: MemoryFileSystem
    log: Path
    start: int
    end: int

    def cuts(self) -> Iterator[tuple[int, MemoryFileSystem]]:
        """Yield disks on which the log ends within the record, and one where it is whole."""
        before, after = self.before.content(self.log), self.after.content(self.log)
        for cut in (*range(self.start, self.end - 1, STEP_BYTES), self.end - 1, self.end):
            files = self.after.copy()
            files.replace_content(self.log, after[:cut] + before[cut:])
            yield cut, files


async def ended(folder: Path, end: Callable[[Client, Transaction], Awaitable[object]], *, is_prepared: bool) -> Ended:
    """Begin a transaction over two streams, one of which is scaled meanwhile, and end it."""
    (folder / "containers" / "0000").mkdir(parents=True)
    files = MemoryFileSystem()
    async with serving(folder, files) as client:
        for stream in (*STREAMS, READ):
            await client.create_stream(stream)
        transaction = await client.begin_transaction(STREAMS, name=NAME)
        for stream in STREAMS:
            transaction.write_many(EVENTS, keys=[f"k{number}" for number in range(len(EVENTS))], stream=stream)
        await transaction.flush()
        if is_prepared:
            await transaction.prepare()
        await scale(client, STREAMS[0])
        before = files.copy()
        await end(client, transaction)
        after = files.copy()
    logs = [path for path in (folder / "containers" / "0000" / "wal" / name for name in after.list_directory(
        folder / "containers" / "0000" / "wal")) if path.suffix == ".log"]  # fmt: skip
    (log,) = [path for path in logs if before.content(path) != after.content(path)]
    places = [
        place
        for place, (one, other) in enumerate(zip(before.content(log), after.content(log), strict=True))
        if one != other
    ]
    return Ended(before, after, log, places[0], places[-1] + 1)


async def check_visible(client: Client, *, is_committed: bool) -> None:
    for stream in STREAMS:
        assert sorted(await values_of(client, stream)) == (sorted(EVENTS) if is_committed else [])


async def commit_and_abort(client: Client, other: Client) -> list[str]:
    """Return what each was told that asked for another end at the same time."""

    async def commit() -> str:
        try:
            return str((await client.commit_transaction(NAME)).state)
        except millrace.TransactionAbortedError:
            return "aborted"

    async def abort() -> str:
        try:
            await other.abort_transaction(NAME)
        except millrace.TransactionCommittedError:
            return "committed"
        return "aborted"

    return list(await asyncio.gather(commit(), abort()))


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("state", ["committed", "aborted"])
async def test_two_who_end_it_otherwise_are_told_one_outcome(tmp_path: Path, state: str) -> None:
    """Behaviours 31, 63, 64: after a kill at any byte of the record, of a commit that a split overtook, too."""
    asyncio.get_running_loop().set_debug(False)

    async def end(client: Client, transaction: Transaction) -> None:
        await (transaction.commit() if state == "committed" else transaction.abort())

    one = await ended(tmp_path, end, is_prepared=True)
    for cut, files in one.cuts():
        is_whole = cut == one.end
        async with serving(tmp_path, files) as client, serving_other(client) as other:
            found = (await client.transaction_outcome(NAME)).state
            assert found == (state if is_whole else "prepared"), f"cut at {cut} of {one.start} to {one.end}"
            await check_visible(client, is_committed=is_whole and state == "committed")
            told = await commit_and_abort(client, other)
            assert told[0] == told[1]
            assert not is_whole or told[0] == state
        async with serving(tmp_path, files) as client:
            assert (await client.transaction_outcome(NAME)).state == told[0]
            await check_visible(client, is_committed=told[0] == "committed")


@asynccontextmanager
async def serving_other(client: Client) -> AsyncIterator[Client]:
    """Connect another client to the server of the first one."""
    async with millrace.connect(str(client.address)) as other:
        yield other


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_cursor_moves_with_the_whole_record_only(tmp_path: Path) -> None:
    """Behaviours 31, 61: the streams and the cursor show all of the commit or nothing, at any byte of the record."""
    asyncio.get_running_loop().set_debug(False)

    async def end(client: Client, transaction: Transaction) -> None:
        transaction.advance(READ, CURSOR, await client.stream_cut(READ), expected=None)
        await transaction.commit()

    one = await ended(tmp_path, end, is_prepared=False)
    for cut, files in one.cuts():
        is_whole = cut == one.end
        for _ in range(2):
            async with serving(tmp_path, files) as client:
                found = (await client.transaction_outcome(NAME)).state
                assert found == ("committed" if is_whole else "open"), f"cut at {cut} of {one.start} to {one.end}"
                await check_visible(client, is_committed=is_whole)
                assert (await client.cursors(READ).get(CURSOR) is not None) == is_whole
