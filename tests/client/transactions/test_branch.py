# Nobody needs to look at the future of a write: finish and commit raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
import gc
import pickle
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from weakref import WeakSet

import pytest

import millrace
from millrace import BranchToken, TransactionState
from millrace.client.client import Client
from millrace.client.testing import TestServer
from tests.client.scaling import scale
from tests.client.write.writers import values_of

pytestmark = pytest.mark.asyncio


async def create(client: Client, *streams: str, segments: int = 4) -> None:
    for stream in streams:
        await client.create_stream(stream, millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(segments)))


async def filled(transaction: millrace.Transaction, *values: bytes, stream: str | None = None) -> BranchToken:
    branch = transaction.branch()
    for value in values:
        branch.write(value, key="k", stream=stream)
    return await branch.finish()


async def fail_after_joining(client: Client, stream: str, *, writes: bool = False) -> None:
    """Raise LookupError in the context of a joined transaction after something was written, to it or to a branch."""
    async with client.transaction(stream, name=f"{stream}-{'u' if writes else 't'}") as joined:
        (joined if writes else joined.branch()).write(b"of a task that fails", key="k")
        raise LookupError


async def test_the_listed_branches_are_committed_and_nothing_else(client: Client, name: str) -> None:
    """Behaviours 28, 68: of what is not listed nothing is read, and nothing is left."""
    await create(client, name)
    transaction = await client.begin_transaction(name, name=f"{name}-t")
    transaction.write(b"of the transaction itself", key="k")
    await transaction.flush()
    first, failed = await filled(transaction, b"1", b"2"), await filled(transaction, b"of a zombie")
    left = transaction.branch()
    left.write(b"never finished", key="k")
    await left.flush()
    second = await filled(transaction, b"3")
    assert await values_of(client, name) == []
    assert (await client.transaction_outcome(f"{name}-t")).event_count == 6

    await transaction.commit(branches=[second, first])

    assert await values_of(client, name) == [b"3", b"1", b"2"]  # in the order of the list
    assert failed.event_count == 1
    with pytest.raises(millrace.ClientClosedError):
        left.write(b"more", key="k")
    assert [segment async for segment in client.segments.list("#")] == []


async def test_without_a_list_all_finished_branches_are_committed(client: Client, name: str) -> None:
    """It is refused while one is not finished, and continues after that."""
    await create(client, name)
    async with client.transaction(name, name=f"{name}-t") as transaction:
        transaction.write(b"of the transaction itself", key="k")
        await filled(transaction, b"1")
        await filled(transaction)
        last = transaction.branch()
        last.write(b"2", key="k")
        for refused in (transaction.commit(), transaction.prepare()):
            with pytest.raises(millrace.InvalidArgumentError, match=r"1 branches .* not finished"):
                await refused
        transaction.write(b"more", key="k")
        await last.finish()
    assert await values_of(client, name) == [b"of the transaction itself", b"more", b"1", b"2"]


async def test_a_finished_branch_takes_no_more(client: Client, name: str) -> None:
    other = f"{name}-b"
    await create(client, name, other)
    async with client.transaction([name, other]) as transaction:
        branch = transaction.branch()
        await branch.send(b"one", key="k", stream=name)
        branch.write_many([b"two"] * 3, keys=["a", "b", "c"], stream=other)
        with pytest.raises(millrace.InvalidArgumentError, match="name the stream"):
            branch.write(b"nowhere")
        token = await branch.finish()

        assert await branch.finish() is token is branch.token
        assert (token.transaction, token.branch, token.event_count) == (transaction.number, branch.branch, 4)
        with pytest.raises(millrace.ClientClosedError, match="finished"):
            branch.write(b"late", key="k", stream=name)
        with pytest.raises(millrace.ClientClosedError, match="finished"):
            branch.write_many([b"late"], key="k", stream=name)
    assert await values_of(client, name) == [b"one"]
    assert await values_of(client, other) == [b"two"] * 3


async def test_what_is_left_of_a_finished_branch_is_its_token(client: Client, name: str) -> None:
    """So a transaction may make any number of them; those of this object are committed in the order of making."""
    await create(client, name)
    async with client.transaction(name) as transaction:
        late = transaction.branch()
        left = WeakSet([late])
        for number in range(20):
            branch = transaction.branch()
            left.add(branch)
            branch.write(b"%d" % number, key="k")
            first, second = await asyncio.gather(branch.finish(), branch.finish())
            assert first is second
        late.write(b"late", key="k")
        del branch
        gc.collect()
        assert list(left) == [late]
        assert transaction._beginning is not None
        assert len(transaction._beginning.listeners) == 2
        await late.finish()
    assert await values_of(client, name) == [b"late", *(b"%d" % number for number in range(20))]


async def test_a_branch_without_events_leaves_nothing(client: Client, name: str) -> None:
    """Behaviour 70: it is listed as it is, and no part was made for it."""
    await create(client, name)
    transaction = await client.begin_transaction(name, name=f"{name}-t")
    token = await filled(transaction)
    assert token.event_count == 0
    assert [each.part_count async for each in client.list_transactions() if each.name == f"{name}-t"] == [0]
    await transaction.commit(branches=[token])
    assert await values_of(client, name) == []


async def test_a_token_is_small_and_can_be_sent(client: Client, name: str) -> None:
    await create(client, name)
    async with client.transaction(name) as transaction:
        token = await filled(transaction, b"1")
        sent = pickle.dumps(token)
        assert pickle.loads(sent) == token
        assert len(sent) < 200
        assert len({token, pickle.loads(sent)}) == 1
        with pytest.raises(AttributeError):
            token.event_count = 2  # type: ignore[misc]


async def test_a_token_of_another_transaction_is_refused(client: Client, name: str) -> None:
    """The error names both, and nothing is committed; another life of the same name is another transaction."""
    await create(client, name)
    before = await client.begin_transaction(name, name=f"{name}-t")
    outdated = await filled(before, b"outdated")
    await before.abort()
    transaction = await client.begin_transaction(name, name=f"{name}-t")
    token = await filled(transaction, b"1")

    for refused in (transaction.commit(branches=[token, outdated]), transaction.prepare(branches=[outdated])):
        with pytest.raises(millrace.BranchTokenError, match=rf"{before.number}\b.*\b{transaction.number}\b"):
            await refused
    with pytest.raises(millrace.InvalidArgumentError, match="must be a BranchToken"):
        await transaction.commit(branches=["token"])  # type: ignore[list-item]
    with pytest.raises(millrace.InvalidArgumentError, match=r"twice|once"):
        await transaction.commit(branches=[token, token])
    wrong = BranchToken(transaction=transaction.number, branch=token.branch, event_count=2)
    with pytest.raises(millrace.BranchMismatchError):
        await transaction.commit(branches=[wrong])
    assert await values_of(client, name) == []
    await transaction.commit(branches=[token])
    assert await values_of(client, name) == [b"1"]


async def test_committed_again_with_the_same_list_or_another(client: Client, server: TestServer, name: str) -> None:
    """Behaviours 29, 64: one copy, and who lists others is told so; also by another process that has joined."""
    await create(client, name)
    transaction = await client.begin_transaction(name, name=f"{name}-t")
    async with millrace.connect(server.address) as other:
        joined = await other.begin_transaction(name, name=f"{name}-t")
        first, second = await filled(transaction, b"1"), await filled(joined, b"2")
        committed = await transaction.commit(branches=[first, second])

        assert await transaction.commit(branches=[second, first]) is committed is await transaction.commit()
        assert (await joined.commit(branches=[first, second])).at == committed.at
        for late in (transaction, joined):
            with pytest.raises(millrace.TransactionCommittedError, match="with other branches"):
                await late.commit(branches=[first])
    assert await values_of(client, name) == [b"1", b"2"]


async def test_prepared_with_a_list(client: Client, name: str) -> None:
    """Behaviour 29: it is committed with that list, or by its name alone, and with no other."""
    await create(client, name)
    transaction = await client.begin_transaction(name, name=f"{name}-t")
    first, second = await filled(transaction, b"1"), await filled(transaction, b"2")
    await transaction.prepare(branches=[first])
    await transaction.prepare(branches=[first])
    for refused in (transaction.commit(branches=[first, second]), transaction.prepare(branches=[second])):
        with pytest.raises(millrace.TransactionPreparedError, match="with other branches"):
            await refused
    assert (await client.commit_transaction(f"{name}-t")).state is TransactionState.COMMITTED
    await transaction.commit(branches=[first])
    assert await values_of(client, name) == [b"1"]


async def test_who_joined_and_made_branches_leaves_it_open(client: Client, server: TestServer, name: str) -> None:
    """Behaviour 68: leaving the context, an error in it, and closing the client end nothing of the others."""
    await create(client, name)
    transaction = await client.begin_transaction(name, name=f"{name}-t")
    tokens = [await filled(transaction, b"of who began it")]
    async with millrace.connect(server.address) as other:
        async with other.transaction(name, name=f"{name}-t") as joined:
            tokens.append(await filled(joined, b"of who joined"))
        assert joined.state is TransactionState.UNKNOWN
        with pytest.raises(millrace.ClientClosedError):
            joined.branch()
        with pytest.raises(LookupError):
            await fail_after_joining(other, name)
        with pytest.raises(asyncio.CancelledError):
            async with other.transaction(name, name=f"{name}-t"):
                raise asyncio.CancelledError
        closed = await other.begin_transaction(name, name=f"{name}-t")
        tokens.append(await filled(closed, b"of who never leaves"))
        left = await other.begin_transaction(name, name=f"{name}-t")
        left.write(b"of who leaves it to others", key="k")
        await left.flush()
        left.release()
    await transaction.commit(branches=tokens)
    assert await values_of(client, name) == [b"of who began it", b"of who joined", b"of who never leaves"]


async def test_who_joined_and_wrote_to_it_commits_or_aborts(client: Client, name: str) -> None:
    """So a program that is started again, and writes everything again, is as it was the first time."""
    await create(client, name)
    first = await client.begin_transaction(name, name=f"{name}-t")
    async with client.transaction(name, name=f"{name}-t") as resumed:
        resumed.write(b"event", key="k")
    assert (resumed.joined, resumed.state) == (True, TransactionState.COMMITTED)
    assert await values_of(client, name) == [b"event"]
    first.release()

    first = await client.begin_transaction(name, name=f"{name}-u")
    with pytest.raises(LookupError):
        await fail_after_joining(client, name, writes=True)
    assert (await client.transaction_outcome(f"{name}-u")).state is TransactionState.ABORTED


async def test_what_was_aborted_meanwhile_is_said_by_the_branch(client: Client, name: str) -> None:
    await create(client, name)
    transaction = await client.begin_transaction(name, name=f"{name}-t")
    branch = transaction.branch()
    branch.write(b"event", key="k")
    await branch.flush()
    await client.abort_transaction(f"{name}-t")
    branch.write(b"more", key="k")
    for _ in range(2):
        with pytest.raises(millrace.TransactionAbortedError, match="aborted"):
            await branch.finish()
    await transaction.abort()
    with pytest.raises(millrace.TransactionAbortedError):
        await branch.finish()
    with pytest.raises(millrace.TransactionAbortedError):
        transaction.branch()


async def test_branches_of_a_transaction_that_a_scale_overtook(client: Client, name: str) -> None:
    """Behaviours 32, 63: every event once, in the order of the list, whatever the stream is scaled to."""
    await create(client, name, segments=1)
    transaction = await client.begin_transaction(name, name=f"{name}-t")
    early = transaction.branch()
    early.write_many([b"a%d" % number for number in range(8)], keys=[f"k{number % 4}" for number in range(8)])
    await early.flush()
    await scale(client, name)
    late = transaction.branch()
    late.write_many([b"b%d" % number for number in range(8)], keys=[f"k{number % 4}" for number in range(8)])
    await transaction.commit(branches=[await early.finish(), await late.finish()])

    async with client.reader(name, end=millrace.TAIL) as reader:
        events = [event async for event in reader]
    for key in range(4):
        expected = [b"%c%d" % (letter, number) for letter in b"ab" for number in (key, key + 4)]
        assert [event.value for event in events if event.key == f"k{key}"] == expected


def fill(address: str, stream: str, name: str, values: Sequence[bytes]) -> bytes:
    """Fill a branch in a process of its own; return its token as it would be sent."""
    with millrace.blocking.connect(address) as client:
        with client.transaction(stream, name=name) as transaction:
            assert transaction.joined
            lost = transaction.branch()
            lost.write(b"of an attempt that is started over", key="k")
            lost.flush()
            branch = transaction.branch()
            branch.write_many(list(values), key="k")
            branch.write(b"last", key="k").result()
            token = branch.finish()
        return pickle.dumps(token)


@pytest.mark.slow
async def test_many_processes_fill_one_transaction(client: Client, server: TestServer, name: str) -> None:
    """Behaviours 28, 68: each joins by name, fills a branch, and is gone before the commit; attempts leave nothing."""
    await create(client, name)
    transaction = await client.begin_transaction(name, name=f"{name}-t", lease_s=60)
    contents = [[b"%d-%d" % (process, number) for number in range(50)] for process in range(4)]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        loop = asyncio.get_running_loop()
        tokens = [
            pickle.loads(sent)
            for sent in await asyncio.gather(
                *(
                    loop.run_in_executor(processes, fill, server.address, name, f"{name}-t", values)
                    for values in contents
                )
            )
        ]
    assert await values_of(client, name) == []

    await transaction.commit(branches=tokens)

    assert await values_of(client, name) == [value for values in contents for value in [*values, b"last"]]


def _use_blocking(address: str, name: str) -> None:
    with millrace.blocking.connect(address) as client:
        client.create_stream(name)
        with client.transaction(name, name=f"{name}-t") as transaction:
            branch = transaction.branch()
            branch.write(b"one", key="k").result()
            branch.write_many([b"two"], key="k")
            branch.flush()
            assert branch.token is None
            token = branch.finish()
            assert branch.token == token
            assert (branch.number, branch.branch) == (token.transaction, token.branch)
            assert branch.streams == transaction.streams == (name,)
            with client.transaction(name, name=f"{name}-t") as joined:
                joined.branch()
                joined.release()
            transaction.commit(branches=[token])
        with client.reader(name, end=millrace.TAIL) as reader:
            assert [event.value for event in reader] == [b"one", b"two"]
        left = client.begin_transaction(name, name=f"{name}-u")
        left.abandon()
        assert not client.abort_transaction(f"{name}-u")  # which was aborted before


async def test_for_threads(server: TestServer, name: str) -> None:
    await asyncio.to_thread(_use_blocking, server.address, name)
