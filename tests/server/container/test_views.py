"""One step moves both views of a row: the admitted view is the fold of the durable view and all that is in flight."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from millrace.model.producer import Producer, ProducerRow
from millrace.model.transaction import TransactionState
from millrace.server.container import container
from millrace.server.container.views import EntityRows, move
from millrace.server.errors import DecisionMisfitError, InvalidArgumentError, ServerError, TransactionError
from millrace.server.kinds.aborts import end_transactions
from millrace.server.kinds.producers.row import step
from millrace.server.kinds.transactions.commands import TransactionCommands
from millrace.server.kinds.transactions.options import TransactionsOptions
from millrace.server.kinds.writers.commands import WriterCommands
from millrace.server.kinds.writers.exclusive import ExclusiveCommands
from millrace.server.kinds.writers.expiry_plan import Borders, decide
from millrace.wire import messages as m
from tests.server.container.histories import apply
from tests.server.container.states import new_state
from tests.server.streams.containers import Streams, streams_in
from tests.support.clock import ManualClock
from tests.support.storage import MemoryStorage
from tests.support.views import differences

TAKEN = m.ProducerTaken(number=7, producer_id="w", holder="h", run="r1")
BORDERS = Borders(named_us=1, unnamed_us=1, marks_us=1)
"""At these, every writer expires."""


def test_an_entity_whose_creation_is_queued_has_an_admitted_row_only() -> None:
    state = new_state()
    admitted, durable = state.admitted.rows["producers"], state.durable.rows["producers"]
    with state.caches["producers"].pin([7]):
        move(admitted, 7, step, TAKEN)
        row = admitted.find("w")
        assert row == ProducerRow("h", "r1", number=7, writer_id="w")
        assert (admitted.get(7), durable.get(7), durable.find("w")) == (row, None, None)
        assert (len(admitted), len(durable), state.caches["producers"].peek(7)) == (1, 0, None)

        apply(state, TAKEN)
        assert (admitted.get(7), durable.get(7), durable.find("w")) == (row, row, row)
        assert (len(admitted), len(durable)) == (1, 1)


def test_an_entity_whose_deletion_is_queued_has_a_durable_row_only() -> None:
    state = new_state()
    apply(state, TAKEN)
    forgotten = m.ProducersForgotten([7])
    with state.caches["producers"].pin([7]):
        move(state.admitted.rows["producers"], 7, step, forgotten)
        assert state.admitted.rows["producers"].find("w") is None
        assert state.durable.rows["producers"].find("w") is not None
        apply(state, forgotten)
        assert (state.durable.rows["producers"].find("w"), len(state.admitted.rows["producers"])) == (None, 0)


def test_the_durable_view_becomes_the_admitted_one_after_a_recovery() -> None:
    state = new_state()
    apply(state, TAKEN)
    apply(state, m.ProducerReset(number=7, producer_id="w", holder="x"))
    with state.caches["producers"].pin([7]):
        assert state.admitted.rows["producers"].get(7) != state.durable.rows["producers"].get(7)
        state.admit_as_durable()
        assert state.admitted.rows["producers"].get(7) == state.durable.rows["producers"].get(7) is not None


async def walk_producers(streams: Streams, seed: int) -> int:
    """Decide about producers in random order, with up to 20 decisions in flight; return how many were refused."""
    random, container = Random(seed), streams.opened.container
    producers = TransactionCommands(container, streams.controller, options=TransactionsOptions()).producers
    refused = 0
    for _ in range(200):
        writer_id, run = f"w{random.randrange(4)}", f"r{random.randrange(6)}"
        row = container.state.admitted.rows["producers"].find(writer_id)
        try:
            match random.randrange(5):
                case 0 if not producers.is_leaving(writer_id):
                    producers.begin(Producer(writer_id, f"h{random.randrange(2)}", run, random.randrange(9)), None)
                case 1 if row is not None:
                    record = m.ProducerReset(number=row.number, producer_id=writer_id, holder="")
                    container.log_decision(record)
                case 2 if row is not None:
                    described = m.SequenceDescribed(
                        number=row.number, producer_id=writer_id, sequence=random.randrange(9), fingerprint=run
                    )
                    container.log_decision(described)
                case 3 if row is not None and container.state.durable.rows["producers"].find(writer_id) is not None:
                    producers.forget([row])
                case 4:
                    number = container.state.take_id() if row is None else row.number + random.randrange(2)
                    container.log_decision(m.ProducerTaken(number=number, producer_id=writer_id, holder="h0", run=run))
                case _:
                    pass
        except (DecisionMisfitError, TransactionError):
            refused += 1
        assert differences(container) == []
        if len(container.in_flight) >= 20 or not random.randrange(8):
            await container.in_flight.settled()
            assert differences(container) == []
        await asyncio.sleep(0)
    return refused


@pytest.mark.asyncio
async def test_the_admitted_view_is_the_fold_of_what_is_in_flight(tmp_path: Path) -> None:
    async with streams_in(tmp_path, storage=MemoryStorage(), clock=ManualClock()) as streams:
        assert [await walk_producers(streams, seed) > 0 for seed in range(5)] == [True] * 5
        assert not streams.opened.container.state.quarantine


async def walk_writers(streams: Streams, seed: int) -> int:
    """Open, release, reset and expire writers in random order, many at once; return how many requests were refused."""
    random, container = Random(seed), streams.opened.container
    writers = WriterCommands(container)
    exclusive = ExclusiveCommands(container, streams=streams.controller, writers=writers)
    created = [
        await streams.controller.create(f"walk{seed}/s{each}", segment_count=1, configuration="") for each in "ab"
    ]
    stream_ids = [stream.stream_id for stream, _ in created]
    numbers = [0]
    requests: list[asyncio.Task[object]] = []

    async def request() -> None:
        writer_id, stream_id = random.choice(["", "v", "w"]), random.choice(stream_ids)
        nonce, start_over = random.randrange(9).to_bytes(16), random.random() < 0.5
        with await container.loader.pin(m.Required(writers=[writer_id], streams=[stream_id])):
            match random.randrange(6):
                case 0 | 1:
                    opened = await writers.open(
                        writer_id, start_over=start_over, stream_id=random.choice([0, stream_id]), nonce=nonce
                    )
                    numbers.append(opened.writer_number)
                case 2:
                    opened = await exclusive.open(
                        writer_id, [], start_over=start_over, stream_id=stream_id, nonce=nonce, expected=[]
                    )
                    numbers.append(opened.writer_number)
                case 3:
                    await exclusive.release(stream_id)
                case 4:
                    expiring = [number for number in {*random.choices(numbers, k=2)} if number]
                    with await container.loader.pin(m.Required(writers=expiring)):
                        found = [writer for each in expiring if (writer := container.state.writers.get(each))]
                        plan = decide(found, BORDERS, busy=())
                        if plan.marked or plan.forgotten:
                            await writers.expire(marked=plan.marked, forgotten=plan.forgotten)
                case _:
                    if writer_id:
                        await writers.reset_sequences(writer_id, stream_id=stream_id, stored_through=-1)

    for _ in range(150):
        requests.append(asyncio.create_task(request()))
        if not random.randrange(4):
            await asyncio.sleep(0)
        assert differences(container) == []
        if not random.randrange(12):
            await container.in_flight.settled()
            assert differences(container) == []
    results = await asyncio.gather(*requests, return_exceptions=True)
    await container.in_flight.settled()
    assert differences(container) == []
    refused = [result for result in results if isinstance(result, BaseException)]
    assert all(isinstance(each, ServerError) and not isinstance(each, DecisionMisfitError) for each in refused), refused
    return len(refused)


@pytest.mark.asyncio
async def test_the_admitted_view_of_writers_is_the_fold_of_what_is_in_flight(tmp_path: Path) -> None:
    async with streams_in(tmp_path, storage=MemoryStorage(), clock=ManualClock()) as streams:
        assert all([0 < await walk_writers(streams, seed) < 150 for seed in range(2)])
        assert not streams.opened.container.state.quarantine


async def walk_transactions(streams: Streams, seed: int) -> set[str]:
    """Begin, prepare, commit and abort transactions in random order; return the types of the records."""
    random, container = Random(seed), streams.opened.container
    transactions = TransactionCommands(container, streams.controller, options=TransactionsOptions())
    await streams.controller.create(f"walk{seed}/s", segment_count=2, configuration="")
    first = await transactions.reserve_ids(400)
    numbers: list[int] = []
    logged: set[str] = set()
    for step_number in range(150):
        number, name = first + step_number, random.choice(["", "n", "o"])
        known = random.choice(numbers[-3:]) if numbers else number
        try:
            match random.randrange(5):
                case 0 | 1:
                    routed = [m.RoutedStream(f"walk{seed}/s", 0, 0)]
                    if transactions.begin_now(number, name, lease_ms=60_000, streams=routed) is not None:
                        numbers.append(number)
                case 2:
                    transactions.prepare_now(known, [], drops_others=True)
                case 3:
                    transactions.commit_now(known, [], drops_others=True)
                case _:
                    found = container.state.admitted_transaction(known)
                    if found is not None and not found.admitted_state.is_final:
                        end_transactions(container, [found], TransactionState.ABORTED)
        except (TransactionError, InvalidArgumentError):
            pass  # it has ended, or cannot be prepared
        logged.update(type(record).__name__ for record in container.in_flight.records())
        assert differences(container) == []
        if len(container.in_flight) >= 20 or not random.randrange(8):
            await container.in_flight.settled()
            assert differences(container) == []
    await container.in_flight.settled()
    return logged


@pytest.mark.asyncio
async def test_the_admitted_view_of_transactions_is_the_fold_of_what_is_in_flight(tmp_path: Path) -> None:
    async with streams_in(tmp_path, storage=MemoryStorage(), clock=ManualClock()) as streams:
        logged = await walk_transactions(streams, 0) | await walk_transactions(streams, 1)
        assert logged == {"TransactionBegun", "TransactionPrepared", "TransactionCommitted", "TransactionsEnded"}


@pytest.mark.asyncio
async def test_an_admitted_row_that_is_not_moved_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "move_rows", lambda batch: None)
    async with streams_in(tmp_path, storage=MemoryStorage(), clock=ManualClock()) as streams:
        opened = streams.opened.container
        opened.log_decision(m.ProducerTaken(number=opened.state.take_id(), producer_id="w", holder="h", run="r"))
        assert differences(opened) != []
        await opened.in_flight.settled()
        assert differences(opened) == []
        opened.stop()


def test_the_row_of_an_entity_that_is_not_durable_is_not_read() -> None:
    entity = EntityRows(7, "w", ProducerRow())
    assert entity.row == ProducerRow()
    entity.durable = None
    with pytest.raises(AssertionError, match="creation is queued"):
        _ = entity.row
