"""A transaction through the client leaves in one piece, and is whole whatever becomes of that."""

# Nobody needs to look at the future of a write: flush and commit raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

import millrace
from millrace import TransactionState
from millrace.client.client import Client
from millrace.client.options import Backoff, ClientOptions, parse_addresses
from millrace.client.transactions.control import Transactions
from millrace.client.transactions.parts_writer import Part
from millrace.client.transport.channel import Channel
from millrace.client.transport.client_guard import ClientGuard
from millrace.server.app import Server
from millrace.server.container.options import ContainerOptions
from millrace.server.kinds.transactions.options import TransactionsOptions
from millrace.wire import messages as m
from tests.client.scaling import scale
from tests.client.write.writers import values_of
from tests.support.clock import ManualClock
from tests.support.cut_connections import relay_to
from tests.support.files import MemoryFileSystem
from tests.support.folders import tmp_path
from tests.support.servers import server_options
from tests.support.settled_containers import _containers_are_settled
from tests.support.still_server import files, sequence_of, server
from tests.support.waiting import until

__all__ = ["_containers_are_settled", "files", "server", "tmp_path"]

pytestmark = pytest.mark.asyncio

STREAM = "a/b"
FOUR = millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(4))
KEYS = [f"k{number}" for number in range(12)]
IMPATIENT = ClientOptions(request_timeout_s=1.0, backoff=Backoff(first_s=0.01, limit_s=0.1))


@pytest_asyncio.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with millrace.connect(server.address) as connected:
        await connected.create_stream(STREAM, FOUR)
        yield connected


async def test_all_of_it_is_one_batch_of_the_log(client: Client, server: Server) -> None:
    """Behaviour 28: also the first transaction waits only for numbers and a writer, which are there for the others."""
    for turn in range(3):
        async with client.transaction(STREAM) as transaction:
            sequence = sequence_of(server)
            for key in KEYS:
                transaction.write(b"%d" % turn, key=key)
            transaction.write_many([b"%d" % turn] * len(KEYS), keys=KEYS)
        assert sequence_of(server) == sequence + 1, turn
        assert transaction.state is TransactionState.COMMITTED
    assert sorted(await values_of(client, STREAM)) == sorted([b"0", b"1", b"2"] * 24)


async def test_its_first_parts_begin_with_it(client: Client, server: Server) -> None:
    """They are no request of their own; those that are needed after it was sent are."""
    async with client.transaction(STREAM) as transaction:
        transaction.write(b"x")  # now there are numbers and a writer
    for flushes, expected in ((False, 2), (True, 3)):
        before = server.counters.frames_total
        async with client.transaction(STREAM) as transaction:
            if flushes:
                transaction.write(b"x", key=KEYS[0])
                await transaction.flush()
            transaction.write_many([b"x"] * len(KEYS), keys=KEYS)
        assert server.counters.frames_total == before + expected


async def test_several_streams_are_one_batch(client: Client, server: Server) -> None:
    await client.create_stream("a/c", FOUR)
    async with client.transaction([STREAM, "a/c"]) as transaction:
        sequence = sequence_of(server)
        for key in KEYS:
            transaction.write(b"x", key=key, stream=STREAM)
            transaction.write(b"y", key=key, stream="a/c")
    assert sequence_of(server) == sequence + 1
    assert await values_of(client, STREAM) == [b"x"] * 12
    assert await values_of(client, "a/c") == [b"y"] * 12


async def test_one_with_a_name_waits_for_its_beginning_only(client: Client, server: Server) -> None:
    async with client.transaction(STREAM, name="order-7") as transaction:
        sequence = sequence_of(server)
        transaction.write_many([b"x"] * len(KEYS), keys=KEYS)
    assert sequence_of(server) == sequence + 1
    with pytest.raises(millrace.TransactionCommittedError):
        await client.begin_transaction(STREAM, name="order-7")


async def test_one_that_wrote_nothing(client: Client, server: Server) -> None:
    """It begins and is committed in one batch; one that is aborted, or left, leaves no trace."""
    async with client.transaction(STREAM):
        sequence = sequence_of(server)
    assert sequence_of(server) == sequence + 1
    transaction = await client.begin_transaction(STREAM)
    await transaction.abort()
    assert transaction.state is TransactionState.ABORTED
    (await client.begin_transaction(STREAM)).abandon()
    await client.ping()
    assert sequence_of(server) == sequence + 1
    transaction = await client.begin_transaction(STREAM)
    await transaction.ping()
    assert [each.number async for each in client.list_transactions()] == [transaction.number]
    await transaction.abort()


async def test_numbers_are_reserved_before_they_are_needed(client: Client, server: Server) -> None:
    """No transaction but the first waits for that: each is one batch, beside those of the reservations."""
    begun = 0
    async with client.transaction(STREAM):
        first = sequence_of(server)
    for begun in range(1, 301):
        transaction = await client.begin_transaction(STREAM)
        assert transaction.number
        transaction.write(b"x", key=KEYS[begun % 12])
        await transaction.commit()
    # A part and a number each, and 1000 numbers in each of the reservations.
    assert sequence_of(server) <= first + 1 + begun + 1


async def test_the_commit_names_all_that_was_written(client: Client) -> None:
    """Behaviour 28: packed or not, so that it cannot leave out what is being moved to another attempt."""
    transaction = await client.begin_transaction(STREAM)
    for key in KEYS:
        transaction.write(b"x", key=key)
    assert transaction._counts() == [(0, len(KEYS))]
    transaction.write_many([b"x"] * 5, key="k")
    transaction.write(b"x", key="k")
    assert transaction._counts() == [(0, len(KEYS) + 6)]
    await transaction.commit()
    assert len(await values_of(client, STREAM)) == len(KEYS) + 6


async def test_what_has_stored_an_event_has_begun(client: Client) -> None:
    """Also before that is answered: it must not begin again then, or the event would be left where it is."""
    async with client.transaction(STREAM):
        pass
    async with client.transaction(STREAM) as transaction:
        for key in KEYS:
            await transaction.write(b"x", key=key)
            assert transaction._beginning is not None
            assert transaction._beginning.current.announcement.is_known
            for part in transaction._writers[STREAM]._targets.segments:
                assert isinstance(part, Part)
                assert part.announcement is None or part.announcement.is_known


# --- the lease ---


async def test_the_lease_is_kept_of_one_that_begins_late(tmp_path: Path) -> None:
    """Behaviour 30: its first event is written long after it was entered, and the last one long after that."""
    clock = ManualClock()
    async with Server(server_options(tmp_path), clock=clock) as server, millrace.connect(server.address) as client:
        await client.create_stream(STREAM, FOUR)
        channel = Channel(parse_addresses(server.address), ClientOptions(), ClientGuard(), clock=clock)
        transactions = Transactions(channel, fetch_tails=client.stream_cuts, find_cut=client._cuts.find)

        async def pass_minutes() -> None:
            for _ in range(90):
                await clock.advance(1.0)
                await (await channel.connection()).send_request(m.Ping())

        async with transactions.make(STREAM, name=None, lease_s=30.0, producer=None, options=None) as transaction:
            await pass_minutes()
            transaction.write(b"first", key="k")
            await transaction.flush()
            await pass_minutes()
            transaction.write(b"last", key="k")
        transactions.close()
        await channel.close()
        assert await values_of(client, STREAM) == [b"first", b"last"]


# --- what is refused ---


async def test_parts_that_found_no_room_are_added_later(tmp_path: Path) -> None:
    """Those of several ranges of keys were announced together: what refused one of them says nothing of the others."""
    options = server_options(tmp_path, transactions=TransactionsOptions(open_parts_count_max=8))
    async with Server(options) as server, millrace.connect(server.address) as client:
        await client.create_stream(STREAM, FOUR)
        first = await client.begin_transaction(STREAM)
        first.write(b"1", key="k")
        await first.flush()
        second = await client.begin_transaction(STREAM)
        second.write_many([b"2"] * len(KEYS), keys=KEYS)
        flushed = asyncio.create_task(second.flush())
        await client.ping()
        await client.ping()
        await first.commit()
        await flushed
        await second.commit()
        assert sorted(await values_of(client, STREAM)) == [b"1"] + [b"2"] * len(KEYS)


async def test_events_are_not_sent_in_vain_while_there_is_no_room_for_their_parts(tmp_path: Path) -> None:
    """The parts alone are asked for again and again, and the events are sent once these are there."""
    options = server_options(tmp_path, transactions=TransactionsOptions(open_parts_count_max=3))
    async with (
        Server(options) as server,
        relay_to(server.address) as relay,
        millrace.connect(relay.address, options=ClientOptions(backoff=Backoff(first_s=0.01, limit_s=0.02))) as client,
    ):
        await client.create_stream(STREAM)
        first, second = [await client.begin_transaction(STREAM) for _ in range(2)]
        for transaction in (first, second):
            await transaction.write(b"x", key="k")
        branch, before, failed = second.branch(), relay.passed[True], server.counters.requests_failed_total
        future = branch.write(bytes(10_000), key="k")
        await until(lambda: server.counters.requests_failed_total >= failed + 6)
        await first.commit()
        await future
        await branch.finish()
        await second.commit()
        assert relay.passed[True] - before < 25_000
        assert await values_of(client, STREAM) == [b"x", b"x", bytes(10_000)]


async def test_a_stream_is_given_once(client: Client) -> None:
    for arguments in ({}, {"name": "twice"}):
        with pytest.raises(millrace.InvalidArgumentError, match="each given once"):
            await client.begin_transaction([STREAM, STREAM], **arguments)  # type: ignore[arg-type]


async def test_a_stream_that_was_scaled_is_fetched_and_begun_again(client: Client, server: Server) -> None:
    """Behaviour 32: no event is lost, none twice, and those of a key are in order."""
    async with millrace.connect(server.address) as other:
        await other.create_stream("a/one")
        async with client.transaction("a/one") as transaction:
            transaction.write(b"0", key="k")
        for turn in range(1, 4):
            await scale(other, "a/one")
            async with client.transaction("a/one") as transaction:
                futures = [transaction.write(b"%d" % turn, key=key) for key in KEYS]
                many = transaction.write_many([b"many"] * len(KEYS), keys=KEYS)
            assert all(stored.event_count for stored in await asyncio.gather(*futures, many))
        async with client.reader("a/one", end=millrace.TAIL) as reader:
            events = [event async for event in reader]
        for key in KEYS:
            mine = [event.value for event in events if event.key == key]
            assert mine == [b"1", b"many", b"2", b"many", b"3", b"many"]


async def test_only_one_of_two_streams_was_scaled(client: Client, server: Server) -> None:
    """What is for the other one is moved too, also what is not written yet."""
    async with millrace.connect(server.address) as other:
        await other.create_stream("a/one")
        streams = [STREAM, "a/one"]
        async with client.transaction(streams):
            pass
        await scale(other, "a/one")
        async with client.transaction(streams) as transaction:
            transaction.write(b"x", key="k", stream=STREAM)
            await transaction.flush()
            transaction.write(b"y", key="k", stream="a/one")
            transaction.write(b"z", key="k", stream=STREAM)
        await scale(other, "a/one")
        async with client.transaction(streams) as transaction:
            transaction.write(b"u", key="k", stream=STREAM)
            transaction.write(b"v", key="k", stream="a/one")
        await scale(other, "a/one")
        async with client.transaction(streams) as transaction:
            pass
        assert transaction.state is TransactionState.COMMITTED
        assert await values_of(client, STREAM) == [b"x", b"z", b"u"]
        assert await values_of(client, "a/one") == [b"y", b"v"]


async def test_scaled_all_the_time(client: Client, server: Server) -> None:
    """Behaviour 32: transactions of several clients while the stream is scaled back and forth."""
    async with millrace.connect(server.address) as other:
        await other.create_stream("a/one")
        is_over = False

        async def commit(name: str) -> int:
            count = 0
            async with millrace.connect(server.address) as mine:
                while not is_over:
                    async with mine.transaction("a/one") as transaction:
                        for key in KEYS:
                            transaction.write(f"{name}-{count}".encode(), key=f"{name}-{key}")
                    count += 1
            return count

        tasks = [asyncio.create_task(commit(f"c{number}")) for number in range(3)]
        for _ in range(8):
            await scale(other, "a/one")
            await asyncio.sleep(0)
        is_over = True
        counts = await asyncio.gather(*tasks)
        async with client.reader("a/one", end=millrace.TAIL) as reader:
            events = [event async for event in reader]
        for number, count in enumerate(counts):
            for key in KEYS:
                mine = [event.value for event in events if event.key == f"c{number}-{key}"]
                assert mine == [f"c{number}-{turn}".encode() for turn in range(count)]


async def test_a_stream_is_sealed_while_it_is_on_its_way(client: Client, server: Server) -> None:
    """Behaviour 21: nothing of it is read; the events and the commit say why."""
    async with client.transaction(STREAM):
        pass
    async with millrace.connect(server.address) as other:
        begun = await client.begin_transaction(STREAM)
        begun.write(b"lost", key="k")
        await begun.flush()
        await other.seal_stream(STREAM)
        future = begun.write(b"lost, too", key="k")
        with pytest.raises(millrace.TransactionAbortedError):
            await begun.commit()
        with pytest.raises(millrace.TransactionAbortedError):
            await future
        # What the client knows of the stream is outdated.
        late = await client.begin_transaction(STREAM)
        future = late.write(b"late", key="k")
        with pytest.raises(millrace.StreamSealedError):
            await late.commit()
        with pytest.raises(millrace.StreamSealedError):
            await future
        with pytest.raises(millrace.StreamSealedError):
            async with client.transaction(STREAM) as transaction:
                transaction.write(b"late", key="k")
        assert await values_of(other, STREAM) == []


async def test_a_stream_that_was_made_anew_is_not_the_one_that_is_known(client: Client, server: Server) -> None:
    async with client.transaction(STREAM) as transaction:
        transaction.write(b"old", key="k")
    async with millrace.connect(server.address) as other:
        await other.seal_stream(STREAM)
        await other.delete_stream(STREAM)
        with pytest.raises(millrace.StreamNotFoundError):
            async with client.transaction(STREAM) as transaction:
                transaction.write(b"lost", key="k")
        await other.create_stream(STREAM, FOUR)
    async with client.transaction(STREAM) as transaction:
        transaction.write(b"new", key="k")
    assert await values_of(client, STREAM) == [b"new"]


async def test_too_many_are_open(tmp_path: Path) -> None:
    """It is tried again for as long as a request may take; then its events and its commit say why."""
    options = server_options(tmp_path, transactions=TransactionsOptions(open_count_max=1))
    async with Server(options) as server, millrace.connect(server.address, options=IMPATIENT) as client:
        await client.create_stream(STREAM, FOUR)
        first = await client.begin_transaction(STREAM)
        first.write(b"kept", key="k")
        await first.flush()
        second = await client.begin_transaction(STREAM)
        future = second.write(b"lost", key="k")
        with pytest.raises(millrace.TransactionsFullError):
            await second.flush()
        with pytest.raises(millrace.TransactionsFullError):
            await future
        with pytest.raises(millrace.TransactionsFullError):
            await second.commit()
        await second.abort()
        third = await client.begin_transaction(STREAM)
        future = third.write(b"kept, too", key="k")
        commit = asyncio.create_task(third.commit())
        await client.ping()
        await first.commit()
        await commit
        assert (await future).event_count == 1
        assert sorted(await values_of(client, STREAM)) == [b"kept", b"kept, too"]


@pytest.mark.parametrize("end", ["abort", "abandon", "release"])
async def test_what_is_over_does_not_begin_any_more(tmp_path: Path, end: str) -> None:
    """Behaviour 30: though somebody waits for its beginning, which is tried again."""
    options = server_options(tmp_path, transactions=TransactionsOptions(open_count_max=1))
    async with Server(options) as server, millrace.connect(server.address) as client:
        await client.create_stream(STREAM, FOUR)
        first = await client.begin_transaction(STREAM, name="first")
        second = await client.begin_transaction(STREAM)
        second.write(b"lost", key="k")
        waiting = [asyncio.create_task(each) for each in (second.ping(), second.branch().finish())]
        await until(lambda: client.statistics().waiting)
        if end == "abort":
            await second.abort()
        else:
            getattr(second, end)()
        await first.commit()
        for each in waiting:
            with pytest.raises(millrace.MillraceError):
                await each
        assert [each.number async for each in client.list_transactions()] == []


async def test_too_large_a_transaction_is_not_committed_in_part(tmp_path: Path) -> None:
    """Behaviour 28: the commit that was sent after the events is refused, and says what the event was refused for."""
    options = server_options(tmp_path, container=ContainerOptions(transaction_size_bytes_max=2000))
    async with Server(options) as server, millrace.connect(server.address) as client:
        await client.create_stream(STREAM, FOUR)
        transaction = await client.begin_transaction(STREAM)
        for key in KEYS:
            transaction.write(bytes(500), key=key)
        with pytest.raises(millrace.TransactionTooLargeError):
            await transaction.commit()
        await transaction.abort()
        assert await values_of(client, STREAM) == []


async def test_the_log_fails_under_it(tmp_path: Path, files: MemoryFileSystem) -> None:
    """Behaviour 43: the outcome is asked for; it is committed once."""
    async with Server(server_options(tmp_path), files=files) as server, millrace.connect(server.address) as client:
        await client.create_stream(STREAM, FOUR)
        async with client.transaction(STREAM) as transaction:
            transaction.write(b"0", key="k")
        container = server.opened.container
        files.fail_syncs_until(lambda: container.has_failed)
        async with client.transaction(STREAM) as transaction:
            future = transaction.write(b"1", key="k")
        assert (await future).event_count == 1
        await until(lambda: server.is_open and not server.opened.container.has_failed)
        assert await values_of(client, STREAM) == [b"0", b"1"]
