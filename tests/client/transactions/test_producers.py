# Nobody needs to look at the future of a write: commit raises what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

import millrace
from millrace import Producer, ProducerInfo, TransactionState
from millrace.client.client import Client
from millrace.client.testing import TestServer
from tests.client.write.writers import values_of

pytestmark = pytest.mark.asyncio


async def commit(client: Client, stream: str, producer: Producer, *values: bytes, name: str | None = None) -> None:
    async with client.transaction(stream, name=name, producer=producer) as transaction:
        for value in values:
            transaction.write(value, key="k")


async def test_a_sequence_is_committed_once(client: Client, name: str) -> None:
    """Behaviour 67: a run that replays what an earlier one has committed is told so, before it writes anything."""
    await client.create_stream(name)
    query = Producer(writer_id=name, holder="query", run="r1", sequence=0)
    await commit(client, name, query, b"zero")
    await commit(client, name, query._replace(sequence=1), b"one")

    with pytest.raises(millrace.ProducerCommittedError, match="sequence 1 is committed already"):
        await commit(client, name, query._replace(run="r2", sequence=1), b"one again")
    await commit(client, name, query._replace(run="r2", sequence=2), b"two")

    assert await values_of(client, name) == [b"zero", b"one", b"two"]
    assert await client.producer_info(name) == ProducerInfo(
        writer_id=name, holder="query", run="r2", last_sequence=2, fenced_runs=("r1",)
    )


async def test_the_last_commit_has_a_fingerprint(name: str, tmp_path: Path) -> None:
    """Behaviour 99: a program whose sequence is committed already finds out whether its content is."""
    with millrace.testing.server(tmp_path) as server:
        async with millrace.connect(server.address) as client:
            await client.create_stream(name)
            producer = Producer(name, "h", "r1", 0)
            for fingerprint in ("day 1", None, "day 3"):
                async with client.transaction(name, producer=producer) as transaction:
                    await transaction.commit(fingerprint=fingerprint)
                assert (await client.producer_info(name)).fingerprint == fingerprint
                producer = producer._replace(sequence=producer.sequence + 1)
    with millrace.testing.server(tmp_path) as server:
        async with millrace.connect(server.address) as client:
            assert (await client.producer_info(name)).fingerprint == "day 3"
            async with client.transaction(name, producer=producer._replace(run="r2")) as transaction:
                with pytest.raises(millrace.InvalidArgumentError, match="at most 1024 bytes, not 1025"):
                    await transaction.commit(fingerprint="x" * 1025)
            async with client.transaction(name) as transaction:
                with pytest.raises(millrace.InvalidArgumentError, match="needs a producer"):
                    await transaction.commit(fingerprint="x")


async def test_what_is_committed_is_one_error_for_names_and_producers(client: Client, name: str) -> None:
    """So a program that starts over catches one class, whichever of the two it gives."""
    assert issubclass(millrace.ProducerCommittedError, millrace.TransactionCommittedError)
    await client.create_stream(name)
    await commit(client, name, Producer(name, "h", "r1", 0), b"once", name=f"{name}-0")
    for other in (f"{name}-0", f"{name}-1", None):
        with pytest.raises(millrace.TransactionCommittedError):
            await commit(client, name, Producer(name, "h", "r2", 0), b"again", name=other)
    assert await values_of(client, name) == [b"once"]


async def test_an_older_run_is_fenced(client: Client, name: str) -> None:
    """Behaviours 68, 69: it commits nothing any more, and nothing of it is left; the error names both."""
    await client.create_stream(name)
    zombie = await client.begin_transaction(name, name=f"{name}-0", producer=(name, "query", "r1", 0))
    zombie.write(b"of a zombie", key="k")
    await zombie.flush()
    await commit(client, name, Producer(name, "query", "r2", 0), b"fresh", name=f"{name}-0")

    with pytest.raises(millrace.ProducerFencedError, match=r"run r1 of query .* run r2 of query"):
        async with zombie:
            pass
    assert zombie.state is TransactionState.ABORTED
    assert f"{name}-0" not in [each.name async for each in client.list_transactions()]
    with pytest.raises(millrace.ProducerFencedError):
        await client.begin_transaction(name, producer=(name, "query", "r1", 5))
    assert await values_of(client, name) == [b"fresh"]


async def test_another_holder_is_refused_until_a_reset(client: Client, name: str) -> None:
    """Behaviour 69: two queries under one identity; after the reset the sequences start over."""
    await client.create_stream(name)
    await commit(client, name, Producer(name, "first", "r1", 41), b"41")
    with pytest.raises(
        millrace.ProducerInUseError, match=rf"held by first, .* second.* txn reset {name} --holder second"
    ):
        await commit(client, name, Producer(name, "second", "s1", 42), b"42")

    assert await client.reset_producer(name, holder="second")
    assert not await client.reset_producer(name, holder="second")
    await commit(client, name, Producer(name, "second", "s1", 0), b"0")
    with pytest.raises(millrace.ProducerFencedError):
        await commit(client, name, Producer(name, "first", "r1", 42), b"42")
    assert await client.reset_producer(name)
    info = await client.producer_info(name)
    assert (info.holder, info.run, info.last_sequence, info.fenced_runs) == (None, None, None, ("r1", "s1"))
    await commit(client, name, Producer(name, "third", "t1", 7), b"7")
    assert (await client.producer_info(name)).holder == "third"
    assert await values_of(client, name) == [b"41", b"0", b"7"]


async def test_a_producer_is_deleted(client: Client, name: str) -> None:
    """Behaviour 104: by who knows what was committed last; its transactions are aborted."""
    await client.create_stream(name)
    await commit(client, name, Producer(name, "first", "r1", 41), b"41")
    left = await client.begin_transaction(name, producer=(name, "first", "r1", 42))
    for last_sequence in (None, 40, 42):
        with pytest.raises(millrace.ProducerCommittedError):
            await client.delete_producer(name, last_sequence=last_sequence)
    for wrong in (-2, "41", True, 1 << 63):
        with pytest.raises(millrace.InvalidArgumentError):
            await client.delete_producer(name, last_sequence=wrong)  # type: ignore[arg-type]

    assert await client.delete_producer(name, last_sequence=41)
    assert not await client.delete_producer(name, last_sequence=41)
    with pytest.raises(millrace.ProducerUnknownError):
        await client.producer_info(name)
    with pytest.raises(millrace.TransactionAbortedError):
        await left.commit()
    await commit(client, name, Producer(name, "second", "s1", 0), b"0")
    assert await values_of(client, name) == [b"41", b"0"]


async def test_odd_input(client: Client, name: str) -> None:
    await client.create_stream(name)
    for producer in ((name, "h", "r"), (name, "h", "r", -1), (name, "h", "", 1), ("", "h", "r", 1), "whrs"):
        with pytest.raises(millrace.InvalidArgumentError):
            client.transaction(name, producer=producer)  # type: ignore[arg-type]
    with pytest.raises(millrace.ProducerUnknownError):
        await client.producer_info(name)
    with pytest.raises(millrace.ProducerUnknownError):
        await client.reset_producer(name, holder="h")
    for holder in ("", "x" * 256):
        with pytest.raises(millrace.InvalidNameError):
            await client.reset_producer(name, holder=holder)
    async with client.transaction(name, producer=(name, "h", "r", 1)) as transaction:
        with pytest.raises(millrace.InvalidArgumentError, match="producer cannot be prepared"):
            await transaction.prepare()
        transaction.write(b"event", key="k")
    assert await values_of(client, name) == [b"event"]


def write_task(address: str, stream: str, name: str, values: Sequence[bytes]) -> millrace.BranchToken:
    """Fill a branch, in a process that knows nothing of the producer."""
    with (
        millrace.blocking.connect(address) as client,
        client.begin_transaction(stream, name=name) as joined,
    ):
        branch = joined.branch()
        branch.write_many(list(values), key="k")
        return branch.finish()


@pytest.mark.slow
async def test_batches_of_a_query_with_tasks_in_processes(client: Client, server: TestServer, name: str) -> None:
    """Behaviours 67, 68, 70: each batch once, also if the driver is started again and sends one again."""
    await client.create_stream(name)

    async def batch(run: str, number: int, tasks: int) -> None:
        async with client.transaction(
            name, name=f"{name}-{number}", producer=(name, "query", run, number), lease_s=60
        ) as transaction:
            parts = await asyncio.gather(
                *(
                    loop.run_in_executor(
                        processes, write_task, server.address, name, f"{name}-{number}", [b"%d-%d" % (number, task)]
                    )
                    for task in range(tasks)
                )
            )
            await transaction.commit(branches=parts)

    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        await batch("r1", 0, tasks=2)
        abandoned = await client.begin_transaction(name, name=f"{name}-1", producer=(name, "query", "r1", 1))
        branch = abandoned.branch()
        branch.write(b"of a driver that was killed", key="k")
        token = await branch.finish()
        with pytest.raises(millrace.TransactionCommittedError):
            await batch("r2", 0, tasks=2)
        await batch("r2", 1, tasks=2)
        await batch("r2", 2, tasks=0)
        await batch("r2", 5, tasks=1)
        with pytest.raises(millrace.ProducerFencedError):
            await abandoned.commit(branches=[token])
    assert await values_of(client, name) == [b"0-0", b"0-1", b"1-0", b"1-1", b"5-0"]
    assert (await client.producer_info(name)).last_sequence == 5


def _use_blocking(address: str, name: str) -> None:
    with millrace.blocking.connect(address) as client:
        client.create_stream(name)
        with client.transaction(name, producer=Producer(name, "h", "r1", 0)) as transaction:
            transaction.write(b"event", key="k")
        with pytest.raises(millrace.ProducerCommittedError):
            client.begin_transaction(name, producer=(name, "h", "r2", 0))
        assert client.producer_info(name).run == "r2"
        assert client.reset_producer(name, holder="other")
        assert client.producer_info(name).fenced_runs == ("r1", "r2")
        assert client.delete_producer(name)


async def test_for_threads(server: TestServer, name: str) -> None:
    await asyncio.to_thread(_use_blocking, server.address, name)
