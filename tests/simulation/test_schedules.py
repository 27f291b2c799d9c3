"""Nothing that was acknowledged is lost, doubled or reordered in any schedule; and schemes that lose events are caught.

One seed alone, with all that happens in it: python -m tests.simulation --only SEED
"""

from collections import Counter
from typing import Final

import pytest

from millrace.server.wal import ObjectWal

from .history import Rule
from .mutants import CollectsFences, OneFolder, RepliesLate, begin_anew, claim_unannounced
from .schedule import run_schedule

SEEDS_COUNT: Final = 1000
"""As many as take about a minute of a processor."""
MUTANT_SEEDS_COUNT: Final = 1000
"""Within which a scheme that loses events has to be caught."""


@pytest.mark.slow
def test_nothing_is_lost_doubled_or_reordered_in_any_schedule() -> None:
    for seed in range(SEEDS_COUNT):
        outcome = run_schedule(seed)
        assert not outcome.violations, str(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("log_class", [CollectsFences, OneFolder])
def test_a_scheme_that_loses_events_is_caught(log_class: type[ObjectWal]) -> None:
    for seed in range(MUTANT_SEEDS_COUNT):
        outcome = run_schedule(seed, log_class=log_class)
        if outcome.rules & {Rule.LOST, Rule.TWO_ACKS}:
            return
    pytest.fail(f"{MUTANT_SEEDS_COUNT} schedules have lost nothing")


@pytest.mark.slow
def test_a_claim_that_begins_anew_without_a_manifest_is_caught() -> None:
    """Behaviour 101: it gives acknowledged sequences out a second time."""
    for seed in range(MUTANT_SEEDS_COUNT):
        outcome = run_schedule(seed, claim=begin_anew)
        if Rule.TWO_ACKS in outcome.rules:
            assert "the manifest is lost" in str(outcome)
            return
    pytest.fail(f"{MUTANT_SEEDS_COUNT} schedules have acknowledged nothing twice")


@pytest.mark.slow
def test_an_reply_writer_that_replies_from_old_memory_is_caught() -> None:
    """Behaviour 101: a request that was under way when its process was stopped is not answered after it wakes."""
    for seed in range(MUTANT_SEEDS_COUNT):
        outcome = run_schedule(seed, reply_writer_class=RepliesLate)
        if Rule.STALE in outcome.rules:
            return
    pytest.fail(f"{MUTANT_SEEDS_COUNT} schedules have no reply from old memory")


@pytest.mark.slow
def test_an_owner_without_its_epoch_in_the_lease_is_caught() -> None:
    """Behaviour 101: it answers from old memory if the manifest is lost before its lease is renewed."""
    for seed in range(300, 300 + MUTANT_SEEDS_COUNT):  # the first one that shows it is 341
        outcome = run_schedule(seed, claim=claim_unannounced)
        if Rule.STALE in outcome.rules:
            return
    pytest.fail(f"{MUTANT_SEEDS_COUNT} schedules have no reply from old memory")


@pytest.mark.slow
def test_a_seed_is_one_schedule() -> None:
    for seed in range(5):
        assert run_schedule(seed).lines == run_schedule(seed).lines


@pytest.mark.slow
def test_schedules_have_takeovers_and_failures_in_them() -> None:
    counted: Counter[str] = Counter()
    words: Counter[str] = Counter()
    for seed in range(10):
        outcome = run_schedule(seed)
        counted += outcome.counted
        words.update(word for line in outcome.lines for word in line.replace(":", " ").split())

    assert counted["starts"] > 30
    assert counted["copies"] > 30
    assert counted["standbys"] > 10
    assert counted["acks"] > 200
    assert counted["replies"] > 30
    assert counted["hedged creates"] > 5
    assert counted["damaged manifests"] > 1
    assert counted["full buckets"] > 5
    assert counted["refusals of a full bucket"] > 5
    assert not {"failed", "crash", "stop", "pause", "cut", "end", "jump", "count", "back"} - words.keys()
