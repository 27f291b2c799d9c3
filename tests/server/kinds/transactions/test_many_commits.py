"""Many commits to one segment: what they leave does not grow with their number.

`python -m benchmarks.many_commits` measures memory and checkpoint after 50,000 and after 100,000.
"""

from contextlib import closing
from dataclasses import replace

import pytest

from millrace.model.block_packing import pack_block
from millrace.server.kinds.transactions.expiry import TransactionExpiryLoop
from millrace.server.kinds.transactions.options import TransactionsOptions
from millrace.wire import messages as m
from millrace.wire.framing import encode
from millrace.wire.limits import KIB
from tests.support.protocol import M, Peer, Stored
from tests.support.scenario import CHECKPOINT, Scenario
from tests.support.servers import QUIET
from tests.support.transactions import begin_request, create_stream, reserve

AT_ONCE = 50
OUTCOMES_COUNT_MAX = 100
CHUNK_SIZE_BYTES_SMALL = 4 * KIB
BLOCK = bytes(pack_block([bytes(100)], timestamps_us=1))


async def all_of(peer: Peer, requests: list[m.Message], kind: type[M]) -> list[M]:
    ids = [peer.next_id() for _ in requests]
    await peer.send(*(encode(request, request_id=each) for each, request in zip(ids, requests, strict=True)))
    return [await peer.reply(each, kind) for each in ids]


async def commit_many(peer: Peer, segment_id: int, count: int) -> None:
    """Commit transactions of one event, many at once."""
    writer = await peer.open_writer("")
    for _ in range(count // AT_ONCE):
        ids = await reserve(peer, 2 * AT_ONCE)
        numbers, parts = ids[:AT_ONCE], ids[AT_ONCE:]
        await all_of(peer, [begin_request(number, "a/b") for number in numbers], m.TransactionReply)
        new = [
            m.AddParts(number=number, branch=0, parts=[m.NewPart(part, segment_id)])
            for number, part in zip(numbers, parts, strict=True)
        ]
        await all_of(peer, [*new], m.Done)
        number, epoch = writer.writer_number, writer.writer_epoch
        for part in parts:
            sent = await peer.append(part, BLOCK, event_number=1, writer_number=number, writer_epoch=epoch)
            assert await peer.settled(sent) == [Stored(0, False)]
        branches = [m.BranchCount(0, 1)]
        commits = [
            m.CommitTransaction(number=number, name="", branches=branches, drops_others=0, cursors=[])
            for number in numbers
        ]
        await all_of(peer, [*commits], m.TransactionReply)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_memory_checkpoint_and_reading_stay_flat(scenario: Scenario) -> None:
    """Behaviour 65: twice as many commits have the same rows, links, borders and pins, and chunks by their bytes."""
    options = replace(QUIET, chunk_size_bytes_small=CHUNK_SIZE_BYTES_SMALL)
    transactions = TransactionsOptions(outcomes_count_max=OUTCOMES_COUNT_MAX)

    def rows_of(*tables: str) -> dict[str, int]:
        with closing(scenario.files.database(CHECKPOINT, mode="ro")) as connection:
            return {table: connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in tables}

    async with scenario.running(container=options, transactions=transactions) as run, run.peer() as peer:
        (segment_id,) = await create_stream(peer, "a/b", 1)
        state = run.state
        counts = []
        for total in (1000, 2000):
            await commit_many(peer, segment_id, 1000)
            while state.merged or state.unflushed or state.segments[segment_id].tail:
                await run.published()
            await run.services.get(TransactionExpiryLoop).forget()
            await run.published()
            assert rows_of("links")["links"] == 0
            assert rows_of("transactions")["transactions"] <= OUTCOMES_COUNT_MAX
            segment = state.segments[segment_id]
            assert segment.event_count == total
            assert segment.length == total * len(BLOCK)
            # No more than one for each so many bytes, and the small ones at the end.
            assert len(segment.chunks) <= segment.length // CHUNK_SIZE_BYTES_SMALL + 10
            assert len(segment.index) <= len(segment.chunks) + 2
            counts.append(
                {
                    **rows_of("segments", "links", "parts", "attributes", "transactions", "writers", "progress"),
                    "segments in memory": len(state.segments),
                    "transactions in memory": len(state.transactions),
                    "open": len(state.open_transactions),
                    "pins": state.open_transactions.pins_count,
                    "attributes": len(segment.attributes),
                    "damages": len(segment.damages),
                }
            )
        assert await peer.read_all(segment_id) == BLOCK * 2000
    assert {**counts[0], "writers": 2} == {**counts[1], "writers": 2}  # each half opened one
