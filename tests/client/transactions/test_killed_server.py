# Nobody needs to look at the future of a write: flush and commit raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.testing import TestServer
from tests.client.write.writers import values_of

pytestmark = pytest.mark.asyncio

TWO = millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(2))


async def kill_and_start(server: TestServer) -> None:
    server.kill()
    await asyncio.to_thread(server.start)


async def test_a_transaction_outlives_a_killed_server(millrace_server: TestServer, name: str) -> None:
    """Behaviour 31: open whole after each kill; numbers that were void with the server are reserved anew."""
    other = f"{name}-b"
    async with millrace.connect(millrace_server.address) as client:
        await client.create_stream(name, TWO)
        await client.create_stream(other, TWO)
        first = await client.begin_transaction([name, other], name=f"{name}-t")
        first.write_many([b"%d" % number for number in range(50)], key="k", stream=name)
        await first.flush()
        await kill_and_start(millrace_server)

        assert await values_of(client, name) == []
        first.write_many([b"%d" % number for number in range(50, 100)], key="k", stream=name)
        first.write_many([b"%d" % number for number in range(100)], keys=[f"{n}" for n in range(100)], stream=other)
        await first.flush()
        await kill_and_start(millrace_server)
        committed = await first.commit()
        await kill_and_start(millrace_server)

        outcome = await client.transaction_outcome(f"{name}-t")
        assert (outcome.state, outcome.decided_at) == ("committed", committed.at)
        assert await values_of(client, name) == [b"%d" % number for number in range(100)]
        assert sorted(await values_of(client, other)) == sorted(b"%d" % number for number in range(100))
        async with client.transaction(name) as second:
            second.write(b"by another number", key="k")
        assert len(await values_of(client, name)) == 101


@pytest.mark.slow
async def test_branches_and_producers_outlive_a_killed_server(millrace_server: TestServer, name: str) -> None:
    """Behaviours 31, 67, 68: what is finished is there, and a run is known as soon as it has begun."""
    async with millrace.connect(millrace_server.address) as client:
        await client.create_stream(name, TWO)
        zombie = await client.begin_transaction(name, name=f"{name}-0", producer=(name, "h", "r1", 0))
        outdated = zombie.branch()
        outdated.write(b"outdated", key="k")
        await outdated.finish()
        transaction = await client.begin_transaction(name, name=f"{name}-0", producer=(name, "h", "r2", 0))
        finished, growing = transaction.branch(), transaction.branch()
        finished.write_many([b"%d" % number for number in range(50)], key="k")
        growing.write_many([b"%d" % number for number in range(50, 60)], key="k")
        tokens = [await finished.finish()]
        await growing.flush()
        await kill_and_start(millrace_server)
        growing.write(b"60", key="k")
        tokens.append(await growing.finish())
        await kill_and_start(millrace_server)

        with pytest.raises(millrace.ProducerFencedError):
            await zombie.commit()
        await transaction.commit(branches=tokens)
        await kill_and_start(millrace_server)

        await transaction.commit(branches=tokens)
        with pytest.raises(millrace.ProducerCommittedError):
            await client.begin_transaction(name, producer=(name, "h", "r2", 0))
        assert (await client.producer_info(name)).fenced_runs == ("r1",)
        assert await values_of(client, name) == [b"%d" % number for number in range(61)]


@pytest.mark.slow
async def test_a_commit_under_way_is_repeated(millrace_server: TestServer, name: str) -> None:
    """Behaviours 29, 31: whether the commit was carried out before the kill or not, it is now, once."""
    async with millrace.connect(millrace_server.address) as client:
        await client.create_stream(name, TWO)
        for turn in range(3):
            await commit_under_kill(client, millrace_server, name, turn)
        assert sorted(await values_of(client, name)) == sorted(b"%d" % (turn % 3) for turn in range(60))


async def commit_under_kill(client: Client, server: TestServer, name: str, turn: int) -> None:
    transaction = await client.begin_transaction(name, producer=(name, "h", "r", turn))
    for number in range(20):
        transaction.write(b"%d" % turn, key=f"k{number}")
    await transaction.flush()
    commit = asyncio.create_task(transaction.commit())
    for _ in range(turn):
        await asyncio.sleep(0)
    await kill_and_start(server)
    await commit
