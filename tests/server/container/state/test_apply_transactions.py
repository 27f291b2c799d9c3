"""What is left of a transaction when damage has taken some of its records."""

from millrace.model.transaction import TransactionState
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.segment import DamagedRange
from millrace.wire import messages as m
from tests.server.container.histories import apply, durable_view, run_of
from tests.server.container.states import new_state
from tests.support.tables import table

LAST = (1 << 64) - 1
CREATED = m.StreamCreated(
    stream_id=1,
    created_us=0,
    name="a/b",
    configuration="{}",
    segments=[m.SegmentRangeRecord(2, 0, 9), m.SegmentRangeRecord(3, 10, LAST)],
    cursors=[],
)
BEGUN = m.TransactionBegun(
    number=4, begun_us=5, lease_ms=1000, name="order-7", streams=[m.TransactionStream(1, 0, CREATED.segments)]
)
PARTS = m.PartsAdded(number=4, branch=0, added_us=6, parts=[m.PartRecord(10, 1, 0, 9), m.PartRecord(11, 1, 10, LAST)])
COMMITTED = m.TransactionCommitted(
    number=4,
    committed_us=7,
    name="order-7",
    digest=bytes(16),
    epochs=[],
    parts=[m.CommittedPart(10, 2, 0, 8, 2), m.CommittedPart(11, 3, 0, 8, 2)],
    dropped=[],
    cuts=[m.TransactionCut(1, 0, [m.CutPosition(2, 8), m.CutPosition(3, 8)])],
    cursors=[],
)


def with_stream(*records: m.Record) -> ContainerState:
    state = new_state()
    for record in (CREATED, *records):
        apply(state, record)
    return state


def test_a_commit_says_all_of_it() -> None:
    """Damage has taken beginning and parts: what is missing is refused, and nothing of it is only half there."""
    state = with_stream(COMMITTED)

    transaction = state.transactions[4]
    assert (transaction.state, transaction.name) == (TransactionState.COMMITTED, "order-7")
    assert transaction.row.cuts == COMMITTED.cuts
    for segment_id in (2, 3):
        segment = state.segments[segment_id]
        assert (segment.length, segment.event_count) == (8, 2)
        assert segment.damages == [DamagedRange(0, 8, "the log")]
    assert len(state.open_transactions) == 0


def test_appends_whose_parts_were_lost_are_committed() -> None:
    state = with_stream()
    part = with_stream(BEGUN, PARTS).segments[10]
    apply(state, run_of(part, offset=0, size=8, event_count=2))
    assert state.segments[10].name == "lost/segment-10"

    apply(state, COMMITTED)

    assert [(extent.offset, extent.size) for extent in state.segments[2].tail.extents] == [(0, 8)]
    assert state.segments[2].damages == []
    assert state.segments[3].damages == [DamagedRange(0, 8, "the log")]


def test_parts_of_a_transaction_that_was_lost_do_not_come_into_being() -> None:
    state = with_stream(PARTS)

    assert state.segments.get(10) is None
    apply(state, m.TransactionsEnded(ended_us=8, state=TransactionState.ABORTED, numbers=[4]))
    assert state.transactions.get(4) is None


def test_an_abort_deletes_the_parts() -> None:
    state = with_stream(BEGUN, PARTS)
    assert state.open_transactions.owner(10) is state.transactions[4]
    assert state.user_segment_count == 2
    assert len(state.segments) == 4

    apply(state, m.TransactionsEnded(ended_us=8, state=TransactionState.EXPIRED, numbers=[4]))

    assert state.open_transactions.owner(10) is None
    assert (len(state.segments), state.user_segment_count) == (2, 2)
    transaction = state.transactions[4]
    assert (transaction.state, transaction.row.decided_us, transaction.parts) == (TransactionState.EXPIRED, 8, {})


def test_a_name_leads_to_the_transaction_that_began_last_though_its_number_is_lower() -> None:
    state = with_stream(
        m.TransactionBegun(number=9, begun_us=5, lease_ms=1000, name="order-7", streams=BEGUN.streams),
        m.TransactionsEnded(ended_us=6, state=TransactionState.ABORTED, numbers=[9]),
        BEGUN,
    )

    assert state.transactions.find("order-7") is state.transactions[4]
    assert state.transactions[9].name == ""
    assert state.transactions.find("") is None


def test_what_is_forgotten_moves_the_horizon() -> None:
    state = with_stream(BEGUN, COMMITTED, m.OutcomesForgotten([4, 77]))

    assert state.transactions.get(4) is None
    assert state.scalars.horizon == 5


def test_an_open_transaction_is_not_forgotten() -> None:
    state = with_stream(BEGUN, m.OutcomesForgotten([4]))

    assert state.transactions[4].state is TransactionState.OPEN
    assert state.scalars.horizon == 0


def test_reserved_ids_are_not_given_to_others() -> None:
    assert with_stream(m.IdsReserved(100, 50)).take_id() == 150


@table(
    "last",
    [
        COMMITTED,
        m.TransactionsEnded(ended_us=8, state=TransactionState.ABORTED, numbers=[4]),
        m.TransactionPrepared(number=4, branches=[m.BranchCount(0, 2)], digest=bytes(16), dropped=[11]),
        m.OutcomesForgotten([4]),
    ],
    ids=lambda record: str(record.type.name),
)
def test_applying_a_record_twice_is_applying_it_once(last: m.Record) -> None:
    records = [m.IdsReserved(4, 50), BEGUN, PARTS, last]
    twice = [record for record in records for _ in range(2)]
    once, again = with_stream(*records), with_stream(*twice)

    assert durable_view(again) == durable_view(once)
    assert again.open_transactions.pins_count == once.open_transactions.pins_count
    assert again.user_segment_count == once.user_segment_count
