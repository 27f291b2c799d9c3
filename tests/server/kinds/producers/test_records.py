from millrace.model.producer import Producer, ProducerRow
from millrace.wire import messages as m
from tests.server.container.histories import apply
from tests.server.container.states import new_state, store

TAKEN = m.ProducerTaken(number=7, producer_id="w", holder="h", run="r1")
COMMITTED = m.CommittedProducer(7, "w", "h", "r1", 5)


def commit(*, producers: list[m.CommittedProducer]) -> m.TransactionCommitted:
    return m.TransactionCommitted(
        number=20, committed_us=1, name="", digest=bytes(16), epochs=[], parts=[], dropped=[], cuts=[], cursors=[],
        producers=producers,
    )  # fmt: skip


def begin(*, producers: list[m.ProducerClaim]) -> m.TransactionBegun:
    return m.TransactionBegun(number=20, begun_us=1, lease_ms=1, name="n", streams=[], producers=producers)


def test_a_producer_comes_with_its_first_run_and_changes_with_its_records() -> None:
    state = new_state()
    apply(state, TAKEN)
    assert state.scalars.next_id == 8
    apply(state, begin(producers=[m.ProducerClaim("w", "h", "r1", 5)]))
    assert state.transactions[20].producer == Producer("w", "h", "r1", 5)
    apply(state, commit(producers=[COMMITTED]))
    assert state.transactions[20].producer is None
    apply(state, m.ProducerTaken(number=7, producer_id="w", holder="h", run="r2"))

    assert [(each.number, each.name, each.row) for each in state.caches["producers"].values()] == [
        (7, "w", ProducerRow("h", "r2", 5, ("r1",), number=7, writer_id="w"))
    ]
    apply(state, m.ProducerReset(number=7, producer_id="w", holder="x"))
    assert state.caches["producers"][7].row == ProducerRow("x", "", -1, ("r1", "r2"), number=7, writer_id="w")
    assert state.caches["producers"].find("w") is state.caches["producers"][7]


def test_a_transaction_that_was_aborted_knows_its_producer() -> None:
    """So a commit that is asked for again is refused for the same reason."""
    state = new_state()
    apply(state, begin(producers=[m.ProducerClaim("w", "h", "r1", 5)]))
    apply(state, m.TransactionsEnded(ended_us=1, state=4, numbers=[20]))
    assert state.transactions[20].producer == Producer("w", "h", "r1", 5)


def test_the_commit_says_it_all_where_damage_took_what_was_before() -> None:
    """So what is in the stream is not committed again."""
    state = new_state()
    apply(state, commit(producers=[COMMITTED]))
    assert state.caches["producers"][7].row == ProducerRow("h", "r1", 5, (), number=7, writer_id="w")

    state = new_state()
    apply(state, m.ProducerTaken(number=7, producer_id="w", holder="h", run="r0"))
    apply(state, commit(producers=[COMMITTED]))
    assert state.caches["producers"][7].row == ProducerRow("h", "r1", 5, ("r0",), number=7, writer_id="w")


def test_a_producer_that_is_idle_is_not_held_in_memory() -> None:
    state = new_state(idle_bytes_max=0)
    apply(state, TAKEN)
    assert state.caches["producers"].peek(7) is not None
    rows = store(state)
    assert [row for table, added in rows.added.items() if table.name == "producers" for row in added] == [
        (7, -1, "w", "h", "r1", "[]")
    ]
    assert state.caches["producers"].peek(7) is None


def test_a_fingerprint_counts_from_the_commit_that_follows_it() -> None:
    """Also where damage took everything before; rows without one are stored as they always were."""
    state = new_state(idle_bytes_max=0)
    apply(state, m.SequenceDescribed(number=7, producer_id="w", sequence=5, fingerprint="3f9c"))
    assert state.caches["producers"].find("w").row.fingerprint == ""  # type: ignore[union-attr]
    apply(state, commit(producers=[COMMITTED]))
    rows = store(state)
    assert [row for table, added in rows.added.items() if table.name == "producers" for row in added] == [
        (7, 5, "w", "h", "r1", '{"runs":[],"sequence":5,"fingerprint":"3f9c"}')
    ]


def test_what_is_forgotten_comes_back_as_another_producer() -> None:
    """A number that damage has made unknown is passed over."""
    state = new_state()
    apply(state, TAKEN)
    apply(state, m.ProducersForgotten([7, 77]))
    assert (len(state.caches["producers"]), state.caches["producers"].find("w")) == (0, None)
    apply(state, m.ProducerTaken(number=9, producer_id="w", holder="other", run="o1"))
    assert [(each.number, each.row.holder) for each in state.caches["producers"].values()] == [(9, "other")]


def test_producers_that_may_have_committed_nothing_are_noted() -> None:
    """Those that are new, and those of a transaction that ended without a commit."""
    state = new_state()
    apply(state, TAKEN)
    assert state.released["producers"] == {"w"}
    state.released["producers"].clear()
    apply(state, begin(producers=[m.ProducerClaim("w", "h", "r1", 5)]))
    assert state.open_transactions.count_as("w") == 1
    apply(state, m.TransactionsEnded(ended_us=1, state=4, numbers=[20]))
    assert (state.open_transactions.count_as("w"), state.released["producers"]) == (0, {"w"})
