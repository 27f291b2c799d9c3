# Nobody needs to look at the future of a write: flush and commit raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

import millrace
from millrace import TransactionState
from millrace.client.client import Client
from millrace.client.testing import TestServer
from millrace.server.app import Server
from millrace.server.container.options import ContainerOptions
from tests.client.scaling import scale
from tests.client.write.writers import values_of
from tests.support.servers import server_options

pytestmark = pytest.mark.asyncio


async def create(client: Client, *streams: str, segments: int = 4) -> None:
    for stream in streams:
        await client.create_stream(stream, millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(segments)))


async def state_of(client: Client, name: str) -> TransactionState:
    return (await client.transaction_outcome(name)).state


async def ended(client: Client, name: str) -> None:
    async with asyncio.timeout(60):
        while await state_of(client, name) == "open":
            await client.ping()


async def test_events_are_readable_with_the_commit_and_not_before(client: Client, name: str) -> None:
    """Behaviour 28: over the segments of two streams; none is read before, all are after."""
    other = f"{name}-b"
    await create(client, name, other)
    async with client.transaction([name, other], name=f"{name}-t") as transaction:
        for number in range(100):
            transaction.write(b"%d" % number, key=f"k{number % 7}", stream=(name, other)[number % 2])
        transaction.write_many([b"many"] * 10, key="k", stream=name)
        transaction.write_many([b"keys"] * 10, keys=[f"k{number}" for number in range(10)], stream=other)
        await transaction.flush()

        assert await values_of(client, name) == await values_of(client, other) == []
        assert await state_of(client, f"{name}-t") == "open"
        assert (await client.transaction_outcome(f"{name}-t")).event_count == 120
    assert transaction.state is TransactionState.COMMITTED
    assert await state_of(client, f"{name}-t") == "committed"
    assert sorted(await values_of(client, name)) == sorted([b"%d" % n for n in range(0, 100, 2)] + [b"many"] * 10)
    assert sorted(await values_of(client, other)) == sorted([b"%d" % n for n in range(1, 100, 2)] + [b"keys"] * 10)


@pytest.mark.parametrize("is_named", [False, True])
async def test_beginning_again_leaves_a_transaction_as_it_is(client: Client, name: str, is_named: bool) -> None:
    await create(client, name)
    transaction = client.transaction(name, name=f"{name}-t" if is_named else None)
    await transaction.begin()
    transaction.write(b"early", key="k")
    number = transaction.number

    await transaction.begin()
    async with transaction:
        transaction.write(b"late", key="k")

    assert (transaction.number, transaction.joined) == (number, False)
    assert await values_of(client, name) == [b"early", b"late"]


async def test_events_of_a_key_keep_their_order_and_headers(client: Client, name: str) -> None:
    await create(client, name)
    async with client.transaction(name) as transaction:
        for number in range(200):
            transaction.write(b"%d" % number, key=f"k{number % 5}", headers={"n": b"%d" % number}, timestamp_us=number)
    async with client.reader(name, end=millrace.TAIL) as reader:
        events = [event async for event in reader]
    for key in range(5):
        mine = [event for event in events if event.key == f"k{key}"]
        assert [event.timestamp_us for event in mine] == list(range(key, 200, 5))
        assert all(event.headers == {"n": event.value} for event in mine)


async def test_the_cuts_of_a_commit_are_one_moment_of_all_streams(client: Client, name: str) -> None:
    """Behaviour 62: what is before the cuts is the whole transaction, in each of its streams."""
    other = f"{name}-b"
    await create(client, name, other)
    transaction = await client.begin_transaction([name, other])
    transaction.write(b"debit", key="k", stream=name)
    transaction.write(b"credit", key="k", stream=other)
    committed = await transaction.commit()

    assert await transaction.commit() is committed
    async with client.writer(name) as writer:
        writer.write(b"later", key="k")
    for stream, value in ((name, b"debit"), (other, b"credit")):
        async with client.reader(stream, end=committed.cuts[stream]) as reader:
            assert [event.value async for event in reader] == [value]
    outcome = await client.stream_cuts([name, other])
    assert outcome[other] == committed.cuts[other]
    assert outcome[name] != committed.cuts[name]


async def test_the_outcome_tells_cuts_after_the_commit(client: Client, name: str) -> None:
    """Behaviour 29: to whoever asks by name: of the streams that got events, and that are still there."""
    other, empty = f"{name}-b", f"{name}-c"
    await create(client, name, other, empty)
    async with client.transaction([name, other, empty], name=f"{name}-t") as transaction:
        transaction.write(b"debit", key="k", stream=name)
        transaction.write(b"credit", key="k", stream=other)
        await transaction.prepare()
        assert (await client.transaction_outcome(f"{name}-t")).cuts == {}
    committed = await client.commit_transaction(f"{name}-t")

    assert committed.cuts == await client.stream_cuts([name, other])
    assert await client.transaction_outcome(f"{name}-t") == committed
    await client.seal_stream(other)
    await client.delete_stream(other)
    assert (await client.transaction_outcome(f"{name}-t")).cuts == {name: committed.cuts[name]}


async def test_an_error_in_the_body_aborts(client: Client, name: str) -> None:
    await create(client, name)
    transaction = client.transaction(name, name=f"{name}-t")

    async def fail() -> None:
        async with transaction:
            transaction.write(b"lost", key="k")
            await transaction.flush()
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    assert transaction.state is TransactionState.ABORTED
    assert await state_of(client, f"{name}-t") == "aborted"
    assert await values_of(client, name) == []
    with pytest.raises(millrace.TransactionAbortedError):
        transaction.write(b"more", key="k")
    await transaction.abort()
    with pytest.raises(millrace.TransactionAbortedError):
        await transaction.commit()


async def test_a_body_that_is_cancelled_aborts_without_waiting(client: Client, name: str) -> None:
    await create(client, name)
    written = asyncio.Event()

    async def write() -> None:
        async with client.transaction(name, name=f"{name}-t") as transaction:
            transaction.write(b"lost", key="k")
            await transaction.flush()
            written.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(write())
    await written.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await ended(client, f"{name}-t")
    assert await state_of(client, f"{name}-t") == "aborted"


async def test_committed_by_name_after_it_was_prepared(client: Client, server: TestServer, name: str) -> None:
    """Behaviours 29, 30: from another client; an open one cannot be, and nothing is committed twice."""
    await create(client, name)
    async with millrace.connect(server.address) as other:
        async with client.transaction(name, name=f"{name}-t") as transaction:
            transaction.write(b"event", key="k")
            await transaction.flush()
            with pytest.raises(millrace.InvalidArgumentError, match="prepared"):
                await other.commit_transaction(f"{name}-t")
            await transaction.prepare()
            await transaction.prepare()
            with pytest.raises(millrace.TransactionPreparedError):
                transaction.write(b"more", key="k")
        assert await state_of(other, f"{name}-t") == "prepared"
        assert await values_of(other, name) == []

        first = await other.commit_transaction(f"{name}-t")
        again = await other.commit_transaction(f"{name}-t")

        assert first == again
        assert first.state is TransactionState.COMMITTED
        assert first.number == transaction.number
        assert first.decided_at is not None
        assert first.begun_at is not None
        assert first.begun_at <= first.decided_at
        with pytest.raises(millrace.TransactionCommittedError):
            await other.abort_transaction(f"{name}-t")
        assert await values_of(other, name) == [b"event"]
        assert (await transaction.commit()).at == first.decided_at


async def test_one_without_a_name_is_not_prepared(client: Client, name: str) -> None:
    """Behaviour 30: nobody could end it after this client; it stays open, and takes more."""
    await create(client, name)
    async with client.transaction(name) as transaction:
        transaction.write(b"event", key="k")
        token = await transaction.branch().finish()
        for branches in (None, [token]):
            with pytest.raises(millrace.InvalidArgumentError, match="give it a name"):
                await transaction.prepare(branches=branches)
        assert transaction.state is TransactionState.OPEN
        transaction.write(b"more", key="k")
    assert await values_of(client, name) == [b"event", b"more"]


async def test_a_prepared_one_is_resumed_by_its_name(client: Client, name: str) -> None:
    await create(client, name)
    async with client.transaction(name, name=f"{name}-t") as transaction:
        transaction.write(b"event", key="k")
        await transaction.prepare()
    async with client.transaction(name, name=f"{name}-t") as resumed:
        assert resumed.joined
        assert resumed.state is TransactionState.PREPARED
        with pytest.raises(millrace.TransactionPreparedError):
            resumed.write(b"more", key="k")
        await resumed.commit()
    assert await values_of(client, name) == [b"event"]


async def test_a_name_that_is_used(client: Client, name: str) -> None:
    """Behaviour 29: an open one is joined, a committed one is refused, an aborted one begins anew."""
    await create(client, name, f"{name}-b")
    first = await client.begin_transaction([name, f"{name}-b"], name=f"{name}-t")
    first.write(b"of an earlier life", key="k", stream=name)
    await first.flush()
    with pytest.raises(millrace.InvalidArgumentError):
        await client.begin_transaction(name, name=f"{name}-t")

    second = await client.begin_transaction([f"{name}-b", name], name=f"{name}-t")
    assert (second.joined, second.number) == (True, first.number)
    second.write(b"again", key="k", stream=name)
    with pytest.raises(millrace.BranchMismatchError):
        await second.commit()
    await second.commit(drop_others=True)

    assert await values_of(client, name) == [b"again"]
    assert await values_of(client, f"{name}-b") == []
    with pytest.raises(millrace.TransactionCommittedError):
        await client.begin_transaction([name, f"{name}-b"], name=f"{name}-t")
    with pytest.raises(millrace.TransactionCommittedError):
        await first.commit()

    aborted = await client.begin_transaction(name, name=f"{name}-u")
    assert await client.abort_transaction(f"{name}-u")
    assert not await client.abort_transaction(f"{name}-u")
    async with client.transaction(name, name=f"{name}-u") as anew:
        assert not anew.joined
        assert anew.number != aborted.number
    with pytest.raises(millrace.TransactionAbortedError):
        await aborted.ping()


async def test_what_was_aborted_by_another_is_said_so(client: Client, name: str) -> None:
    await create(client, name)
    async with client.transaction(name, name=f"{name}-t") as transaction:
        transaction.write(b"event", key="k")
        await transaction.flush()
        await client.abort_transaction(f"{name}-t")
        future = transaction.write(b"more", key="k")
        with pytest.raises(millrace.TransactionAbortedError, match="aborted"):
            await transaction.flush()
        with pytest.raises(millrace.TransactionAbortedError, match="aborted"):
            await future
        with pytest.raises(millrace.TransactionAbortedError, match="aborted"):
            await transaction.flush()  # it is not forgotten that events are lost
        await transaction.abort()
    assert await values_of(client, name) == []


async def test_a_lost_write_is_no_half_commit(client: Client, name: str) -> None:
    """Behaviour 28: a commit whose events are not all stored is refused, and again."""
    await create(client, name)

    async def lose() -> None:
        async with client.transaction(name, name=f"{name}-t") as transaction:
            transaction.write(b"stored", key="k")
            await transaction.flush()
            await client.abort_transaction(f"{name}-t")
            transaction.write(b"lost", key="k")
            with pytest.raises(millrace.TransactionAbortedError):
                await transaction.commit()

    with pytest.raises(millrace.TransactionAbortedError):
        await lose()
    assert await values_of(client, name) == []


async def test_scaled_meanwhile(client: Client, name: str) -> None:
    """Behaviour 32: every event once, in the order of its key, also before and after the transaction."""
    await create(client, name, segments=1)
    async with client.writer(name) as writer, client.transaction(name) as transaction:
        for number in range(20):
            transaction.write(b"%d" % number, key=f"k{number % 4}")
        await transaction.flush()
        await writer.write_many([b"before"] * 4, keys=[f"k{key}" for key in range(4)])
        await scale(client, name)
        for number in range(20, 40):
            transaction.write(b"%d" % number, key=f"k{number % 4}")
        await transaction.commit()
        await writer.write_many([b"after"] * 4, keys=[f"k{key}" for key in range(4)])
    async with client.reader(name, end=millrace.TAIL) as reader:
        events = [event async for event in reader]
    for key in range(4):
        expected = [b"before", *(b"%d" % number for number in range(key, 40, 4)), b"after"]
        assert [event.value for event in events if event.key == f"k{key}"] == expected


async def test_the_lease_is_kept_while_the_client_lives(client: Client, name: str) -> None:
    """Behaviour 30: it is renewed without a call, also longer than the lease."""
    await create(client, name)
    transaction = await client.begin_transaction(name, name=f"{name}-t", lease_s=1.0)
    left = await client.begin_transaction(name, name=f"{name}-left", lease_s=1.0)
    left.release()
    await ended(client, f"{name}-left")
    assert (await client.transaction_outcome(f"{name}-left")).has_expired
    with pytest.raises(millrace.ClientClosedError):
        await left.ping()
    await transaction.commit()


async def test_odd_input(client: Client, name: str) -> None:
    await create(client, name, f"{name}-b")
    transaction = client.transaction([name, f"{name}-b"])
    with pytest.raises(millrace.NotOpenError):
        transaction.write(b"early", stream=name)
    with pytest.raises(millrace.NotOpenError):
        await transaction.commit()
    with pytest.raises(millrace.NotOpenError):
        await transaction.abort()
    async with transaction:
        with pytest.raises(millrace.InvalidArgumentError, match="name the stream"):
            transaction.write(b"nowhere")
        with pytest.raises(millrace.InvalidArgumentError, match="not over"):
            transaction.write(b"elsewhere", stream="a/elsewhere")
        with pytest.raises(TypeError):
            transaction.write("text", stream=name)  # type: ignore[arg-type]
    for arguments in ({"name": ""}, {"name": f"{name}-t", "lease_s": 0.5}, {"name": "a\nb"}):
        with pytest.raises(millrace.InvalidArgumentError):
            await client.begin_transaction(name, **arguments)
    # What has no name begins with its first events, or when it ends.
    with pytest.raises(millrace.InvalidArgumentError, match="the lease of a transaction"):
        await (await client.begin_transaction(name, lease_s=0.5)).commit()
    with pytest.raises(millrace.StreamNotFoundError):
        await client.begin_transaction("a/nothing")
    assert await state_of(client, f"{name}-never") == "unknown"
    with pytest.raises(millrace.TransactionUnknownError):
        await client.abort_transaction(f"{name}-never")
    with pytest.raises(millrace.TransactionUnknownError):
        await client.commit_transaction(f"{name}-never")


async def test_more_than_a_part_is_written_before_it_is_there(client: Client, name: str) -> None:
    """Blocks that are full wait until the server has the part."""
    await create(client, name, segments=2)
    values = [b"%06d" % number + b"x" * 20_000 for number in range(150)]
    async with client.transaction(name) as transaction:
        for value in values:
            transaction.write(value, key=value[:6].decode())
    assert sorted(await values_of(client, name)) == values


async def test_those_that_are_not_over_are_listed(client: Client, name: str) -> None:
    """Those of all clients, by their numbers, also over several pages."""
    await create(client, name)
    transactions = [await client.begin_transaction(name, name=f"{name}-{n}", lease_s=60) for n in range(5)]
    transactions[1].write(b"event", key="k")
    await transactions[1].prepare()
    await transactions[2].abort()
    await transactions[3].commit()

    found = [listed async for listed in client.list_transactions() if listed.name.startswith(name)]
    in_pages = [listed async for listed in client._transactions.listed(page_count=2) if listed.name.startswith(name)]

    assert in_pages == found
    assert [each.name for each in found] == [f"{name}-0", f"{name}-1", f"{name}-4"]
    assert [each.state for each in found] == ["open", "prepared", "open"]
    assert [each.part_count for each in found] == [0, 1, 0]
    assert {each.lease_s for each in found} == {60.0}
    assert [each.number for each in found] == [transactions[n].number for n in (0, 1, 4)]
    assert found[0].begun_at == (await client.transaction_outcome(f"{name}-0")).begun_at
    for left in (0, 1, 4):
        await transactions[left].abort()


def _use_blocking(address: str, name: str) -> None:
    with millrace.blocking.connect(address) as client:
        client.create_stream(name)
        with client.transaction(name, name=f"{name}-t") as transaction:
            transaction.write(b"event", key="k").result()
            transaction.write_many([b"more"] * 2, key="k")
            transaction.flush()
            transaction.ping()
            assert (transaction.name, transaction.joined, transaction.state) == (f"{name}-t", False, "open")
            with client.reader(name, end=millrace.TAIL) as reader:
                assert list(reader) == []
        assert transaction.state == client.transaction_outcome(f"{name}-t").state == "committed"
        assert transaction.number == client.transaction_outcome(f"{name}-t").number
        with client.reader(name, end=millrace.TAIL) as reader:
            assert [event.value for event in reader] == [b"event", b"more", b"more"]
        with pytest.raises(LookupError), client.transaction(name, name=f"{name}-u") as transaction:
            raise LookupError
        assert client.transaction_outcome(f"{name}-u").state == "aborted"
        client.begin_transaction(name, name=f"{name}-v").prepare()
        assert client.commit_transaction(f"{name}-v").state == "committed"
        client.begin_transaction(name, name=f"{name}-w")
        assert f"{name}-w" in [listed.name for listed in client.list_transactions()]
        assert client.abort_transaction(f"{name}-w")


async def test_for_threads(server: TestServer, name: str) -> None:
    await asyncio.to_thread(_use_blocking, server.address, name)


async def test_no_way_of_reading_finds_what_is_not_committed(tmp_path: Path) -> None:
    """Behaviour 28: neither a reader, nor a range, a cut, a distance, a size, a count or a list."""
    async with Server(server_options(tmp_path)) as server, millrace.connect(server.address) as client:
        await client.create_stream("a/b")
        async with client.transaction("a/b") as transaction:
            await transaction.write(b"event", key="k")
            tail = await client.stream_cut("a/b")
            info = await client.stream_info("a/b")
            async with client.reader("a/b", end=millrace.TAIL) as reader:
                assert [event async for event in reader] == []
            assert await client.plan_ranges("a/b") == []
            assert (await client.distance(millrace.HEAD, tail)).events == 0
            assert (info.size_bytes, info.segments[0].event_count) == (0, 0)
            assert [each.name async for each in client.segments.list()] == ["a/b#0.0"]
            assert [name async for name in client.list_streams()] == ["a/b"]
            assert await client.stream_cut("a/b", at_time=datetime(2024, 1, 1, tzinfo=UTC)) == tail
            assert (await client.explain_stream("a/b"))["size_bytes"] == 0
        assert (await client.distance(millrace.HEAD, await client.stream_cut("a/b"))).events == 1
        assert await client.stream_cut("a/b") != tail


async def test_a_transaction_that_is_too_large_is_none_of_its_stream(tmp_path: Path) -> None:
    """The client tells it by its type, and the commit is refused; what fits is committed."""
    options = server_options(tmp_path, container=ContainerOptions(transaction_size_bytes_max=1000))
    async with Server(options) as server, millrace.connect(server.address) as client:
        await client.create_stream("a/b")
        async with client.transaction("a/b", name="small") as transaction:
            await transaction.write(bytes(500))
        large = client.transaction("a/b", name="large")
        await large.begin()
        large.write(bytes(500))
        await large.flush()
        large.write(bytes(600))
        with pytest.raises(millrace.TransactionTooLargeError):
            await large.commit()
        await large.abort()
        assert (await client.transaction_outcome("large")).state is millrace.TransactionState.ABORTED
        async with client.reader("a/b", end=millrace.TAIL) as reader:
            assert [len(event.value) async for event in reader] == [500]
