"""A transaction through the client is committed once, whatever connections are lost and servers are started again."""

# Nobody needs to look at the future of a write: flush and commit raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
from pathlib import Path

import pytest

import millrace
from millrace.client.options import Backoff, ClientOptions
from millrace.client.transactions.transaction import Transaction
from millrace.server.app import Server
from millrace.server.kinds.transactions.options import TransactionsOptions
from millrace.wire import messages as m
from tests.client.write.writers import values_of
from tests.support.clock import ManualClock
from tests.support.cut_connections import relay_to
from tests.support.files import MemoryFileSystem
from tests.support.folders import tmp_path
from tests.support.servers import server_options
from tests.support.settled_containers import _containers_are_settled
from tests.support.still_server import files, server
from tests.support.waiting import until

__all__ = ["_containers_are_settled", "files", "server", "tmp_path"]

pytestmark = pytest.mark.asyncio

STREAM = "a/b"
FOUR = millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(4))
KEYS = [f"k{number}" for number in range(12)]
IMPATIENT = ClientOptions(request_timeout_s=1.0, backoff=Backoff(first_s=0.01, limit_s=0.1))


def connections_of(server: Server) -> int:
    count: int = server.statistics()["server"].connections
    return count


@pytest.mark.parametrize("to_server", [True, False])
async def test_a_connection_may_be_lost_at_each_step(tmp_path: Path, *, to_server: bool) -> None:
    """Behaviours 28, 29: whatever was sent, or answered, by then: it is committed once, and each event is told so."""
    async with (
        Server(server_options(tmp_path), clock=ManualClock()) as server,
        relay_to(server.address) as relay,
        millrace.connect(relay.address) as client,
        millrace.connect(server.address) as other,
    ):
        await client.create_stream(STREAM, FOUR)
        expected: list[bytes] = []

        async def commit(turn: int) -> None:
            async with client.transaction(STREAM) as transaction:
                futures = [transaction.write(b"%d" % turn, key=key) for key in KEYS]
            assert all(stored.event_count for stored in await asyncio.gather(*futures))
            expected.extend([b"%d" % turn] * len(KEYS))

        await commit(0)
        before = relay.passed[to_server]
        await commit(1)
        size = relay.passed[to_server] - before
        for turn, place in enumerate(range(0, size, max(1, size // 25)), start=2):
            relay.cut_after(place, to_server=to_server)
            await commit(turn)
            assert sorted(await values_of(other, STREAM)) == sorted(expected), place
        assert relay.cuts_count >= 20


async def test_a_connection_is_lost_between_the_writes(server: Server) -> None:
    async with relay_to(server.address) as relay, millrace.connect(relay.address) as client:
        await client.create_stream(STREAM, FOUR)
        async with client.transaction(STREAM) as transaction:
            for turn in range(6):
                for key in KEYS[turn : turn + 4]:
                    transaction.write(b"%d" % turn, key=key)
                if turn % 2:
                    await transaction.flush()
                relay.cut()
        assert sorted(await values_of(client, STREAM)) == sorted(b"%d" % turn for turn in range(6) for _ in range(4))


@pytest.mark.parametrize("to_server", [True, False])
async def test_what_begins_it_is_sent_before_the_events_on_each_connection(server: Server, *, to_server: bool) -> None:
    """Whether the server knows it or not: it refuses nothing then."""
    async with relay_to(server.address) as relay, millrace.connect(relay.address) as client:
        await client.create_stream(STREAM, FOUR)
        async with client.transaction(STREAM):
            pass
        async with client.transaction(STREAM) as transaction:
            failed = server.counters.requests_failed_total
            for keys in (KEYS[:1], KEYS):  # with parts of the beginning, and with parts that are added
                relay.cut_after(0, to_server=to_server)
                transaction.write_many([b"x"] * len(keys), keys=keys)
                await transaction.flush()
            assert (relay.cuts_count, server.counters.requests_failed_total) == (2, failed)
        assert len(await values_of(client, STREAM)) == 1 + len(KEYS)


async def test_all_of_it_arrives_late_after_it_was_begun_again(tmp_path: Path) -> None:
    """The server was full when it was asked on a new connection; what is still on the old one is not a second time."""
    options = server_options(tmp_path, transactions=TransactionsOptions(open_count_max=3))
    async with (
        Server(options) as server,
        relay_to(server.address) as relay,
        millrace.connect(server.address) as other,
        millrace.connect(relay.address, options=ClientOptions(backoff=Backoff(first_s=0.01, limit_s=0.1))) as client,
    ):
        await client.create_stream(STREAM, FOUR)
        async with client.transaction(STREAM) as transaction:
            transaction.write(b"first", key="k")
        relay.hold()
        transaction = await client.begin_transaction(STREAM)
        number = transaction.number
        for key in KEYS:
            transaction.write(b"once", key=key)
        commit = asyncio.create_task(transaction.commit())
        await until(lambda: m.CommitTransaction.type in relay.held_types())
        blockers = [await other.begin_transaction(STREAM) for _ in range(2)]
        for blocker in blockers:
            await blocker.ping()
        relay.cut_held()
        await until(lambda: transaction.number != number)
        for blocker in blockers:
            await blocker.abort()
        connections = connections_of(server)
        relay.deliver()
        await commit
        # What was late is carried out before its connection is ended, and durable before what is decided next.
        await until(lambda: connections_of(server) < connections)
        await other.create_stream("a/next")
        assert sorted(await values_of(other, STREAM)) == [b"first", *[b"once"] * len(KEYS)]


async def test_what_is_committed_is_not_sent_again(server: Server) -> None:
    """Where only the answers are lost, that of the commit is asked for before anything else."""
    async with relay_to(server.address) as relay, millrace.connect(relay.address) as client:
        await client.create_stream(STREAM, FOUR)
        async with client.transaction(STREAM):
            pass
        before = relay.passed[True]
        relay.cut_after(0, to_server=False)
        async with client.transaction(STREAM) as transaction:
            futures = [transaction.write(bytes(4000), key=key) for key in KEYS]
        assert relay.cuts_count == 1
        assert [stored.offset for stored in await asyncio.gather(*futures)] == [None] * len(KEYS)
        assert relay.passed[True] - before < 2 * 4000 * len(KEYS)
        assert len(await values_of(client, STREAM)) == len(KEYS)


async def test_an_event_that_was_given_up_is_not_left_out_of_the_commit(server: Server) -> None:
    """Behaviour 28: not even where all is stored that was sent, and only what waited for it is lost."""
    async with (
        relay_to(server.address) as relay,
        millrace.connect(relay.address, options=IMPATIENT) as client,
    ):
        await client.create_stream(STREAM, FOUR)
        transaction = await client.begin_transaction(STREAM, options=millrace.WriterOptions(delivery_timeout_s=0.5))
        transaction.write(b"0", key="k")
        await transaction.flush()
        await client.ping()
        relay.lead_to("127.0.0.1:1")
        relay.cut_after(0, to_server=False)
        transaction.write(b"stored", key="k")
        await asyncio.sleep(0)
        lost = transaction.write(b"lost", key="k")  # gathered while the one before is on its way
        with pytest.raises(millrace.DeliveryTimeoutError):
            await lost
        relay.lead_to(server.address)
        with pytest.raises(millrace.DeliveryTimeoutError):
            await transaction.commit()
        with pytest.raises(millrace.DeliveryTimeoutError):
            await transaction.commit()
        await transaction.abort()
        assert await values_of(client, STREAM) == []


async def test_one_that_ended_before_it_was_known_to_have_begun_begins_again(server: Server) -> None:
    """Its lease may run out while the connection is lost. Nobody has written to it, so another number does as well."""
    async with (
        relay_to(server.address) as relay,
        millrace.connect(server.address) as other,
        millrace.connect(relay.address, options=ClientOptions(backoff=Backoff(first_s=0.01, limit_s=0.1))) as client,
    ):
        await client.create_stream(STREAM, FOUR)
        async with client.transaction(STREAM) as transaction:  # so that numbers are reserved
            transaction.write(b"0", key="k")
        open_transactions = server.opened.container.state.open_transactions
        relay.lead_to("127.0.0.1:1")
        relay.cut_after(0, to_server=False)
        beginning = asyncio.create_task(client.begin_transaction(STREAM, name="order-1"))
        await until(lambda: len(open_transactions) == 1)
        (number,) = open_transactions.by_number
        await other.abort_transaction(number=number)
        relay.lead_to(server.address)
        transaction = await beginning
        assert transaction.number != number
        transaction.write(b"1", key="k")
        await transaction.commit()
        assert sorted(await values_of(client, STREAM)) == [b"0", b"1"]


async def test_numbers_that_became_void_are_taken_anew(tmp_path: Path, files: MemoryFileSystem) -> None:
    """Behaviour 31: with a power loss at each step of the first transaction that the server sees after a start."""
    options = server_options(tmp_path)
    server = Server(options, files=files)
    await server.start()
    async with relay_to(server.address) as relay, millrace.connect(relay.address) as client:
        await client.create_stream(STREAM, FOUR)
        async with client.transaction(STREAM) as transaction:
            transaction.write(b"0", key="k")
        expected = [b"0"]
        for turn in range(1, 6):
            begun = await client.begin_transaction(STREAM)
            begun.write(b"%d" % turn, key="k")
            if turn % 2:
                await begun.flush()
            relay.cut()
            await server.stop()
            files.crash(turn)
            server = Server(options, files=files)
            await server.start()
            relay.lead_to(server.address)
            begun.write(b"%d" % turn, key="k")
            begun.write(b"%d" % turn, key="another")
            await begun.commit()
            expected += [b"%d" % turn] * 3
            assert sorted(await values_of(client, STREAM)) == sorted(expected)
    await server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("is_named", [False, True])
async def test_the_server_is_started_again_while_numbers_are_taken_anew(
    tmp_path: Path, files: MemoryFileSystem, *, is_named: bool
) -> None:
    """Behaviours 31, 89: those that were reserved after the first start are void after the second one."""
    options = server_options(tmp_path)
    server = Server(options, files=files)
    await server.start()
    patient = ClientOptions(backoff=Backoff(first_s=0.01, limit_s=0.05))

    async def start_again() -> None:
        nonlocal server
        relay.cut()
        await server.stop()
        server = Server(options, files=files)
        await server.start()
        relay.lead_to(server.address)

    async with relay_to(server.address) as relay, millrace.connect(relay.address, options=patient) as client:
        await client.create_stream(STREAM)
        expected: list[bytes] = []
        size = None

        async def commit(turn: int, begun: Transaction | None) -> None:
            begun = begun or await client.begin_transaction(STREAM, name=f"t{turn}")
            begun.write(b"%d" % turn, key="k")
            await begun.commit()

        for turn in range(30):
            # One without a name has its number then, and nothing is sent yet.
            begun = None if is_named else await client.begin_transaction(STREAM)
            await start_again()
            start = relay.passed[True]
            if turn:
                assert size is not None
                relay.cut_after(turn * size // 30, to_server=True)
            cuts_count = relay.cuts_count
            task = asyncio.create_task(commit(turn, begun))
            await until(lambda: relay.cuts_count > cuts_count or task.done())  # noqa: B023  # awaited in this turn
            if turn:
                await start_again()
            await task
            size = size or relay.passed[True] - start
            expected.append(b"%d" % turn)
        assert await values_of(client, STREAM) == expected
    await server.stop()
