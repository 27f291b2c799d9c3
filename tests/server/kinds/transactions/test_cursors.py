"""Cursors that move with the commit of a transaction, or keep it from being made, over a raw connection."""

import pytest

from millrace.model.block_packing import pack_block
from millrace.model.transaction import TransactionState
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.framing import encode
from tests.support.protocol import Peer, RefusedError, code_of
from tests.support.scenario import Scenario
from tests.support.transactions import (
    PeerTransaction,
    create_stream,
    outcome_of,
)

pytestmark = pytest.mark.asyncio


def at(segment_id: int, offset: int) -> list[m.SavedPosition]:
    return [m.SavedPosition(segment_id, offset, 0)]


async def cursors_of(peer: Peer, stream: str) -> dict[str, list[m.SavedPosition]]:
    return {cut.name: cut.positions for cut in (await peer.ask(m.ListCuts(stream), m.CutList)).cuts}


async def test_positions_that_were_read_move_with_the_commit_or_keep_it_from_being_made(scenario: Scenario) -> None:
    """Behaviour 61: read, process, write; also after a restart."""
    async with scenario.running() as run, run.peer() as peer:
        (source,) = await create_stream(peer, "a/read", 1)
        (target,) = await create_stream(peer, "a/written", 1)
        block = bytes(pack_block([b"event"]))
        size = len(block)
        await peer.store(source, block, block)
        first, second = await PeerTransaction.begin(peer, "a/written"), await PeerTransaction.begin(peer, "a/written")
        await first.write(b"first ")
        await second.write(b"second ")

        def move(*, expected: list[m.SavedPosition], to: int) -> list[m.CursorMove]:
            return [m.CursorMove("a/read", "job", expected, at(source, to))]

        await first.commit(cursors=move(expected=[], to=size))
        assert await cursors_of(peer, "a/read") == {"job": at(source, size)}

        # The second one has read from the same place as the first.
        assert await code_of(second.commit(cursors=move(expected=[], to=size))) is ErrorCode.CURSOR_MOVED
        assert await peer.read_all(target) == b"first "
        assert (await outcome_of(peer, number=second.number)).state == TransactionState.OPEN
        for wrong, code in ((2, ErrorCode.CUT_INVALID), (9999, ErrorCode.OFFSET_BEYOND_END)):
            assert await code_of(second.commit(cursors=move(expected=at(source, size), to=wrong))) is code
        await second.commit(cursors=move(expected=at(source, size), to=2 * size))
        again = await second.commit(cursors=move(expected=at(source, size), to=2 * size))
        assert again.changed == 0
    async with scenario.running() as run, run.peer() as peer:
        assert await cursors_of(peer, "a/read") == {"job": at(source, 2 * size)}
        assert await peer.read_all(target) == b"first second "


async def test_of_two_commits_at_once_that_move_one_cursor_one_is_made(peer: Peer) -> None:
    """Behaviour 61: what is in flight counts, though it is not durable yet."""
    (source,) = await create_stream(peer, "a/read", 1)
    await peer.store(source, b"x")
    (target,) = await create_stream(peer, "a/written", 1)
    transactions = [await PeerTransaction.begin(peer, "a/written") for _ in range(8)]
    for transaction in transactions:
        await transaction.write(b"event")
    moves = [m.CursorMove("a/read", "job", [], at(source, 1))]

    # In one piece, so that the server has all of them before the first one is durable.
    started = [peer.next_id() for _ in transactions]
    requests = zip(transactions, started, strict=True)
    await peer.send(*[encode(each.commit_request(cursors=moves), request_id=number) for each, number in requests])

    outcomes: list[ErrorCode | None] = []
    for request_id in started:
        try:
            await peer.reply(request_id, m.TransactionReply)
            outcomes.append(None)
        except RefusedError as error:
            outcomes.append(error.code)
    assert sorted(map(str, outcomes)) == sorted(map(str, [None] + [ErrorCode.CURSOR_MOVED] * 7))
    assert await peer.read_all(target) == b"event"


async def test_no_cursor_moves_with_a_prepared_transaction(peer: Peer) -> None:
    """What is prepared can always be committed."""
    (segment_id,) = await create_stream(peer, "a/b", 1)
    transaction = await PeerTransaction.begin(peer, "a/b", name="order-7")
    await transaction.write(b"event")
    await transaction.prepare()

    moves = [m.CursorMove("a/b", "job", [], at(segment_id, 0))]
    assert await code_of(transaction.commit(cursors=moves)) is ErrorCode.INVALID_ARGUMENT
    assert (await transaction.commit()).state == TransactionState.COMMITTED
    assert await cursors_of(peer, "a/b") == {}
