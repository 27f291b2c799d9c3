# Nobody needs to look at the future of a write: flush and commit raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio

import pytest

import millrace
from millrace import HEAD, TAIL, Event, StreamCut, TransactionState
from millrace.client.client import Client
from millrace.client.testing import TestServer
from millrace.client.transactions.cursor_moves import CursorMoves
from millrace.model.cut import CutChoice
from tests.client.scaling import scale
from tests.client.write.writers import values_of

pytestmark = pytest.mark.asyncio


async def create(client: Client, name: str) -> tuple[str, str]:
    """Create a stream with ten events, of four segments, and one to write to; return their names."""
    four = millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(4))
    source, target = f"{name}-read", f"{name}-written"
    await client.create_stream(source, four)
    await client.create_stream(target, four)
    async with client.writer(source) as writer:
        await writer.write_many([b"%d" % number for number in range(10)], keys=[f"k{n}" for n in range(10)])
    return source, target


async def cursor_of(client: Client, stream: str) -> StreamCut | None:
    return await client.cursors(stream).get("job")


async def process(client: Client, source: str, target: str, *, count: int | None = None) -> int:
    """Read from the cursor on, at most so many events, and write them with the cursor in one transaction."""
    start = await cursor_of(client, source)
    async with client.reader(source, start=start or HEAD, end=TAIL) as reader:
        events: list[Event] = []
        while count is None or len(events) < count:
            event = await anext(reader, None)
            if event is None:
                break
            events.append(event)
        end = reader.position()
    async with client.transaction(target) as transaction:
        for event in events:
            transaction.write(event.value, key=event.key)
        transaction.advance(source, "job", end, expected=start)
    return len(events)


async def test_read_process_write(client: Client, name: str) -> None:
    """Behaviour 61: each event once, also in the middle of a block and after a scaling, and with nothing to write."""
    source, target = await create(client, name)

    assert [await process(client, source, target, count=3) for _ in range(2)] == [3, 3]
    await scale(client, source)
    async with client.writer(source) as writer:
        await writer.write_many([b"%d" % number for number in range(10, 20)], keys=[f"k{n}" for n in range(10)])
    assert [await process(client, source, target) for _ in range(2)] == [14, 0]

    assert sorted(map(int, await values_of(client, target))) == list(range(20))
    assert await cursor_of(client, source) == await client.stream_cut(source)


async def test_a_cursor_moves_with_the_commit_and_not_with_an_abort(client: Client, name: str) -> None:
    """Behaviour 61."""
    source, target = await create(client, name)
    head, tail = await client.stream_cut(source).head(), await client.stream_cut(source)
    await client.cursors(source).set("job", head)

    aborted = await client.begin_transaction(target)
    aborted.write(b"aborted", key="k")
    aborted.advance(source, "job", tail, expected=head)
    await aborted.flush()
    await aborted.abort()
    assert await cursor_of(client, source) == head

    async with client.transaction(target) as transaction:
        transaction.write(b"committed", key="k")
        transaction.advance(source, "job", tail, expected=head)
        transaction.advance(target, "job", await client.stream_cut(target).head(), expected=None)
        await transaction.flush()
        assert await cursor_of(client, source) == head
    assert await cursor_of(client, source) == tail
    assert await cursor_of(client, target) is not None
    assert await values_of(client, target) == [b"committed"]


async def test_a_cursor_that_is_elsewhere_refuses_the_commit(client: Client, name: str) -> None:
    """Behaviour 61: nothing of the transaction remains, and no other cursor of it moves."""
    source, target = await create(client, name)
    head, tail = await client.stream_cut(source).head(), await client.stream_cut(source)
    third = await client.stream_cut(source, after_events=3)
    await client.cursors(source).set("job", third)

    async def commit(expected: StreamCut | None) -> None:
        async with client.transaction(target, name=f"{name}-t") as transaction:
            transaction.write(b"refused", key="k")
            transaction.advance(source, "other", tail, expected=None)
            transaction.advance(source, "job", tail, expected=expected)

    for expected in (head, tail, None):
        with pytest.raises(millrace.CursorMovedError, match=f"cursor job of {source}"):
            await commit(expected)
        assert (await client.transaction_outcome(f"{name}-t")).state is TransactionState.ABORTED

    assert await values_of(client, target) == []
    assert [saved.name for saved in await client.cursors(source).list()] == ["job"]
    assert await cursor_of(client, source) == third


async def test_of_many_at_once_one_is_committed(client: Client, name: str) -> None:
    """Behaviour 61: all have read the same events."""
    source, target = await create(client, name)

    outcomes = await asyncio.gather(*(process(client, source, target) for _ in range(8)), return_exceptions=True)

    assert [outcome for outcome in outcomes if not isinstance(outcome, millrace.CursorMovedError)] == [10]
    assert len(await values_of(client, target)) == 10


async def test_what_moves_a_cursor_is_not_prepared(client: Client, name: str) -> None:
    source, target = await create(client, name)
    tail = await client.stream_cut(source)
    async with client.transaction(target, name=f"{name}-t") as transaction:
        transaction.advance(source, "job", tail, expected=None)
        with pytest.raises(millrace.InvalidArgumentError, match="prepared"):
            await transaction.prepare()
        assert (await client.transaction_outcome(f"{name}-t")).state == "open"
        transaction.write(b"event", key="k")
    assert await cursor_of(client, source) == tail
    async with client.transaction(target, name=f"{name}-u") as prepared:
        await prepared.prepare()
        with pytest.raises(millrace.TransactionPreparedError):
            prepared.advance(source, "job", tail, expected=tail)
        await prepared.abort()


async def test_a_place_in_words_is_looked_up_once_at_the_commit(client: Client, name: str) -> None:
    source, target = await create(client, name)
    seen = await client.stream_cut(source)
    transaction = await client.begin_transaction(target)
    transaction.advance(source, "job", "tail", expected=None)
    async with client.writer(source) as writer:
        await writer.write(b"later", key="k")
    then = await client.stream_cut(source)
    await transaction.commit()
    assert await cursor_of(client, source) == then != seen

    moved = await client.begin_transaction(target)
    moved.advance(source, "job", "tail", expected="head")
    for _ in range(2):
        with pytest.raises(millrace.CursorMovedError):
            await moved.commit()
        async with client.writer(source) as writer:
            await writer.write(b"later still", key="k")
    await client.cursors(source).set("job", "head")
    await moved.commit()
    assert await cursor_of(client, source) == then


async def test_a_place_that_is_not_there_refuses_the_commit(client: Client, name: str) -> None:
    source, target = await create(client, name)

    transaction = client.transaction(target)
    await transaction.__aenter__()
    transaction.write(b"never", key="k")
    transaction.advance(source, "job", "bookmark:none", expected=None)
    with pytest.raises(millrace.CutInvalidError, match="has no bookmark 'none'"):
        await transaction.__aexit__(None, None, None)

    assert transaction.state is TransactionState.ABORTED
    assert await cursor_of(client, source) is None
    assert await values_of(client, target) == []


async def test_odd_input(client: Client, name: str) -> None:
    source, target = await create(client, name)
    tail = await client.stream_cut(source)
    transaction = client.transaction(target)
    with pytest.raises(millrace.NotOpenError):
        transaction.advance(source, "job", tail, expected=None)
    async with transaction:
        elsewhere = await client.stream_cut(target)
        for odd in (elsewhere, str(elsewhere)):
            with pytest.raises(millrace.InvalidArgumentError, match="cannot be used for"):
                transaction.advance(source, "job", odd, expected=None)
            with pytest.raises(millrace.InvalidArgumentError, match="cannot be used for"):
                transaction.advance(source, "job", tail, expected=odd)
        for nothing in (None, "yesterday", 1.5):
            with pytest.raises(millrace.InvalidArgumentError, match="is not a place in a stream"):
                transaction.advance(source, "job", nothing, expected=None)  # type: ignore[arg-type]
        transaction.advance(source, "job", tail, expected=None)
        with pytest.raises(millrace.InvalidArgumentError, match="once"):
            transaction.advance(source, "job", tail, expected=tail)
    with pytest.raises(millrace.ClientClosedError):
        transaction.advance(source, "late", tail, expected=None)
    assert await cursor_of(client, source) == tail
    unnamed = await client.begin_transaction(target)
    unnamed.advance(source, "", tail, expected=None)
    with pytest.raises(millrace.InvalidArgumentError):
        await unnamed.commit()
    await unnamed.abort()


@pytest.mark.slow
async def test_a_kill_before_the_commit_leaves_the_cursor(millrace_server: TestServer, name: str) -> None:
    """Behaviour 61: it moves with the commit, whenever that is made."""
    async with millrace.connect(millrace_server.address) as client:
        source, target = await create(client, name)
        third, tail = await client.stream_cut(source, after_events=3), await client.stream_cut(source)
        await client.cursors(source).set("job", third)
        transaction = await client.begin_transaction(target)
        transaction.write(b"event", key="k")
        transaction.advance(source, "job", tail, expected=third)
        await transaction.flush()

        millrace_server.kill()
        await asyncio.to_thread(millrace_server.start)
        assert await cursor_of(client, source) == third
        await transaction.commit()
        millrace_server.kill()
        await asyncio.to_thread(millrace_server.start)

        assert await cursor_of(client, source) == tail
        assert await values_of(client, target) == [b"event"]


@pytest.mark.slow
@pytest.mark.parametrize("turns", range(4))
async def test_a_kill_under_the_commit(millrace_server: TestServer, name: str, turns: int) -> None:
    """Behaviour 61: a commit that is sent again does not meet the cursor that it has moved itself."""
    async with millrace.connect(millrace_server.address) as client:
        source, target = await create(client, name)
        tail = await client.stream_cut(source)
        transaction = await client.begin_transaction(target)
        transaction.write(b"event", key="k")
        transaction.advance(source, "job", tail, expected=None)
        await transaction.flush()
        commit = asyncio.create_task(transaction.commit())
        for _ in range(turns):
            await asyncio.sleep(0)
        millrace_server.kill()
        await asyncio.to_thread(millrace_server.start)
        await commit

        assert await cursor_of(client, source) == tail
        assert await values_of(client, target) == [b"event"]


async def test_moves_may_be_added_while_places_are_looked_up() -> None:
    """And two commits at once name the same places."""
    found: list[str] = []

    async def find(stream: str, _place: CutChoice) -> StreamCut:
        found.append(stream)
        if found == ["a/b"]:
            moves.add("c/d", "job", TAIL, expected=None)
        await asyncio.sleep(0)
        return StreamCut.of(stream, {1: (len(found), 0)})

    moves = CursorMoves(find)
    moves.add("a/b", "job", TAIL, expected=HEAD)

    one, other = await asyncio.gather(moves.found(), moves.found())

    assert one == other
    assert [move.stream for move in one] == ["a/b", "c/d"]
    assert found == ["a/b", "a/b", "c/d"]


def _use_blocking(address: str, name: str) -> None:
    with millrace.blocking.connect(address) as client:
        client.create_stream(name)
        head = client.stream_head(name)
        for expected in (None, head):
            with client.transaction(name) as transaction:
                transaction.advance(name, "job", head, expected=expected)
        assert client.cursors(name).get("job") == head
        with pytest.raises(millrace.CursorMovedError), client.transaction(name) as transaction:
            transaction.advance(name, "job", head, expected=None)
        with pytest.raises(millrace.InvalidArgumentError), client.transaction(name) as transaction:
            transaction.advance(name, "job", "soon", expected=head)
        with client.transaction(name) as transaction:
            transaction.advance(name, "job", TAIL, expected="head")
        assert client.cursors(name).get("job") == client.stream_cut(name)


async def test_for_threads(server: TestServer, name: str) -> None:
    await asyncio.to_thread(_use_blocking, server.address, name)
