"""Behaviours 67 and 69: the rules of producers hold in random walks, and each that is left out shows."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest

from millrace.model.errors import MillraceError
from millrace.model.producer import Producer, ProducerRow, ProducerVerdict
from millrace.model.transaction import TransactionState
from millrace.server.container import container
from millrace.server.container.state import apply
from millrace.server.container.state.transaction import Transaction
from millrace.server.kinds.producers import commands as producer_commands
from millrace.server.kinds.producers.commands import ProducerCommands
from millrace.server.kinds.registry import KINDS
from millrace.server.kinds.transactions import commands as transaction_commands
from millrace.wire import messages as m
from tests.support.folders import tmp_path
from tests.support.producer_walk import ProducerWalk
from tests.support.protocol import RefusedError
from tests.support.servers import BUSY, QUIET

__all__ = ["tmp_path"]

STEPS_COUNT = 80


def walk(seed: int, folder: Path) -> dict[str, int]:
    """Walk once; raise what goes wrong, with the seed."""
    going = ProducerWalk(seed, folder=folder, container=BUSY if seed % 2 else QUIET)
    (folder / "containers" / "0000").mkdir(parents=True, exist_ok=True)

    async def walked() -> None:
        async with asyncio.timeout(60):
            await going.run(steps=STEPS_COUNT)

    try:
        asyncio.run(walked())
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    return going.seen


@pytest.mark.slow
def test_the_rules_hold_whatever_happens(tmp_path: Path) -> None:
    """Behaviours 64, 67, 68, 69: takeovers, replays, zombies, resets, pairs of requests and kills, by seed."""
    seen: dict[str, int] = {}
    for seed in [*range(8), SystemRandom().randrange(8, 1 << 40)]:
        for outcome, count in walk(seed, tmp_path).items():
            seen[outcome] = seen.get(outcome, 0) + count
    # Others are too rare for each few walks, and have tests of their own.
    assert seen.keys() >= {"OK", "AGAIN", "PRODUCER_COMMITTED", "PRODUCER_FENCED", "PRODUCER_HELD"}


Patch = pytest.MonkeyPatch
MUTANTS: dict[str, Callable[[Patch], None]] = {}
WALKS_OF_A_MUTANT_MAX = 20


def mutant(function: Callable[[Patch], None]) -> Callable[[Patch], None]:
    """List a mutant under the name of the function that makes it."""
    MUTANTS[function.__name__] = function
    return function


@mutant
def a_replaced_run_begins(patch: Patch) -> None:
    at_begin = ProducerRow.at_begin
    patch.setattr(ProducerRow, "at_begin", lambda row, producer: at_begin(_with(row, fenced=()), producer))


@mutant
def a_replaced_run_commits(patch: Patch) -> None:
    patch.setattr(
        ProducerRow,
        "at_commit",
        lambda row, producer: ProducerVerdict.STORED if producer.sequence <= row.last_sequence else ProducerVerdict.NEW,
    )


@mutant
def another_holder_begins(patch: Patch) -> None:
    at_begin = ProducerRow.at_begin
    patch.setattr(ProducerRow, "at_begin", lambda row, producer: at_begin(_with(row, holder=""), producer))


@mutant
def a_sequence_is_not_compared_at_the_beginning(patch: Patch) -> None:
    at_begin = ProducerRow.at_begin
    patch.setattr(ProducerRow, "at_begin", lambda row, producer: at_begin(_with(row, last_sequence=-1), producer))


@mutant
def a_sequence_is_not_compared_at_the_commit(patch: Patch) -> None:
    at_commit = ProducerRow.at_commit
    patch.setattr(ProducerRow, "at_commit", lambda row, producer: at_commit(_with(row, last_sequence=-1), producer))


@mutant
def the_holder_is_compared_before_the_run(patch: Patch) -> None:
    at_begin = ProducerRow.at_begin

    def judged(row: ProducerRow, producer: Producer) -> ProducerVerdict:
        return ProducerVerdict.HELD if row.holder not in {"", producer.holder} else at_begin(row, producer)

    patch.setattr(ProducerRow, "at_begin", judged)


@mutant
def a_reset_forgets_the_runs_before(patch: Patch) -> None:
    patch.setattr(
        ProducerRow, "reset", lambda row, holder: replace(row, holder=holder, run="", last_sequence=-1, fenced=())
    )


@mutant
def a_reset_keeps_the_sequence(patch: Patch) -> None:
    reset = ProducerRow.reset
    patch.setattr(ProducerRow, "reset", lambda row, holder: _with(reset(row, holder), last_sequence=row.last_sequence))


@mutant
def what_is_committed_takes_nothing_over(patch: Patch) -> None:
    take_over = ProducerCommands._take_over

    def taken(self: ProducerCommands, producer: Producer, address: str) -> None:
        row = self._admitted.find(producer.writer_id)
        if row is not None and row.at_begin(producer) is ProducerVerdict.STORED:
            refusal = producer_commands._refusal(ProducerVerdict.STORED, row, producer)
            assert refusal is not None
            raise refusal
        take_over(self, producer, address)

    patch.setattr(ProducerCommands, "_take_over", taken)


@mutant
def an_outcome_is_not_looked_up_first(patch: Patch) -> None:
    begin = ProducerCommands.begin

    def begun(
        self: ProducerCommands, producer: Producer, found: Transaction | None, *, address: str
    ) -> Transaction | None:
        if found is None or found.state is not TransactionState.COMMITTED:
            return begin(self, producer, found, address=address)
        begin(self, producer, None, address=address)
        return found

    patch.setattr(ProducerCommands, "begin", begun)


@mutant
def a_refused_commit_drops_nothing(patch: Patch) -> None:
    def ended(*_: object) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    patch.setattr(transaction_commands, "end_transactions", ended)


@mutant
def a_takeover_is_not_applied(patch: Patch) -> None:
    patch.setitem(KINDS.transitions, m.ProducerTaken, ())


@mutant
def a_reset_is_not_applied(patch: Patch) -> None:
    patch.setitem(KINDS.transitions, m.ProducerReset, ())


@mutant
def a_commit_does_not_store_the_sequence(patch: Patch) -> None:
    patch.setitem(KINDS.transitions, m.TransactionCommitted, ())


@mutant
def the_durable_view_does_not_move(patch: Patch) -> None:
    patch.setattr(apply, "move_rows", lambda batch: None)


@mutant
def the_view_of_what_is_queued_does_not_move(patch: Patch) -> None:
    patch.setattr(container, "move_rows", lambda batch: None)


@mutant
def a_new_run_joins_what_the_old_one_began(patch: Patch) -> None:
    begin = ProducerCommands.begin
    patch.setattr(
        ProducerCommands,
        "begin",
        lambda self, producer, found, address: begin(self, producer, found, address=address) or found,
    )


def _with(row: ProducerRow, **changes: Any) -> ProducerRow:
    return replace(row, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_walk_shows_each_rule_that_is_left_out(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    for seed in range(WALKS_OF_A_MUTANT_MAX):
        try:
            walk(seed, tmp_path)
        except (AssertionError, MillraceError, RefusedError, ExceptionGroup):
            return
    pytest.fail(f"{WALKS_OF_A_MUTANT_MAX} walks went well")
