"""Behaviour 66: a named writer with sequences, killed at any moment, stores every sequence once.

The writer of the product and the row of the server walk through everything that can happen, drawn by a seed
(`tests.support.sequence_walk`). Each rule of the design is left out once, by a mutant, and a walk must show it. A seed
that fails is repeated, and more are tried, by

    python -m tests.client.write.test_sequence_walks --first 102 --count 1
"""

import argparse
import asyncio
import random
import sys
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import pytest

from millrace.client.write import delivery, reroute, routing, sequences, writer
from millrace.client.write.delivery import Delivery
from millrace.client.write.events import Block, Events, joined
from millrace.client.write.segment_writer import SegmentWriter
from millrace.client.write.sequences import SequenceTracker
from millrace.model.errors import MillraceError
from millrace.model.key_range import KeyRange
from millrace.model.sequence_row import SequenceRow
from millrace.wire import messages as m
from tests.support.model_server import Append, ModelServer
from tests.support.sequence_walk import Walk
from tests.support.tables import table
from tests.support.waiting import PATIENCE_S

WALKS = 60
WALKS_OF_A_MUTANT_MAX = 300


def walk(seed: int) -> None:
    """Walk once; raise what goes wrong."""

    async def walked() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await Walk(seed).run()

    try:
        asyncio.run(walked())
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


@table("first", range(0, WALKS, 20))
def test_every_sequence_is_stored_once_whatever_happens(first: int) -> None:
    """Behaviour 66."""
    for seed in range(first, first + 20):
        walk(seed)


@pytest.mark.slow
def test_every_sequence_is_stored_once_in_other_walks() -> None:
    """Behaviour 66."""
    first = random.SystemRandom().randrange(1 << 40)
    print(f"seeds from {first} on")
    for seed in range(first, first + 300):
        walk(seed)


# --- each rule left out ---

Patch = pytest.MonkeyPatch
MUTANTS: dict[str, Callable[[Patch], None]] = {}


def mutant(function: Callable[[Patch], None]) -> Callable[[Patch], None]:
    """List a mutant under the name of the function that makes it."""
    MUTANTS[function.__name__] = function
    return function


@mutant
def marks_are_set_and_not_raised(patch: Patch) -> None:
    store = SequenceRow.store

    def stored(self: SequenceRow, keys: KeyRange, *, last: int, stored_below: int) -> None:
        store(self, keys, last=-1, stored_below=0)  # cuts it
        low, high = self._lows.index(keys.low) if keys.low in self._lows else None, keys.high
        if low is not None:
            for index in range(low, len(self._lows)):
                if self._lows[index] < high:
                    self._marks[index] = last
        store(self, keys, last=last, stored_below=stored_below)

    patch.setattr(SequenceRow, "store", stored)


def _store_below(patch: Patch, changed: Callable[[int, int], int]) -> None:
    """Let rows take another `stored_below`, made of `last` and the right one."""
    store = SequenceRow.store
    patch.setattr(
        SequenceRow,
        "store",
        lambda self, keys, *, last, stored_below: store(
            self, keys, last=last, stored_below=changed(last, stored_below)
        ),
    )


@mutant
def stored_below_is_taken_for_stored_through(patch: Patch) -> None:
    _store_below(patch, lambda last, stored_below: stored_below + 1)


@mutant
def everything_up_to_a_stored_block_is_taken_for_stored(patch: Patch) -> None:
    _store_below(patch, lambda last, stored_below: max(last + 1, stored_below))


@mutant
def stored_below_comes_from_acks(patch: Patch) -> None:
    block_acked = Delivery._block_acked
    acked: dict[Delivery, int] = {}

    def noted(self: Delivery, segment: SegmentWriter, block: Block, offset: int | None) -> None:
        if block.sequences is not None:
            acked[self] = max(acked.get(self, -1), block.sequences[-1])
        block_acked(self, segment, block, offset)

    stored_below = Delivery.stored_below
    patch.setattr(Delivery, "_block_acked", noted)
    patch.setattr(Delivery, "stored_below", lambda self: max(acked.get(self, -1) + 1, stored_below(self)))


def _count_as_unstored(patch: Patch, sequences_of: Callable[[SegmentWriter], list[int]]) -> None:
    """Let segment writers count only these of their sequences."""
    patch.setattr(SegmentWriter, "first_sequence", property(lambda self: min(sequences_of(self), default=None)))


def _firsts(blocks: Iterable[Block]) -> list[int]:
    return [block.sequences[0] for block in blocks if block.sequences is not None]


@mutant
def what_is_gathered_is_not_counted_as_unstored(patch: Patch) -> None:
    _count_as_unstored(patch, lambda segment: _firsts([*segment._sent, *segment._queue, *segment._returned]))


@mutant
def what_is_queued_is_not_counted_as_unstored(patch: Patch) -> None:
    _count_as_unstored(patch, lambda segment: [*segment.accumulator.sequences[:1], *_firsts(segment._sent)])


@mutant
def what_is_in_flight_is_not_counted_as_unstored(patch: Patch) -> None:
    _count_as_unstored(patch, lambda segment: [*segment.accumulator.sequences[:1], *_firsts(segment._queue)])


@mutant
def a_writer_begins_after_its_highest_mark(patch: Patch) -> None:
    stored_below = SequenceTracker.stored_below
    patch.setattr(
        SequenceTracker,
        "stored_below",
        lambda self, unstored: (
            self._row.highest + 1 if unstored is None and self.last < 0 else stored_below(self, unstored)
        ),
    )


@mutant
def one_mark_stands_for_all_places(patch: Patch) -> None:
    patch.setattr(SequenceTracker, "is_stored", lambda self, sequence, *, place: sequence <= self._row.highest)


@mutant
def nothing_above_stored_through_is_recognised(patch: Patch) -> None:
    patch.setattr(SequenceTracker, "is_stored", lambda self, sequence, *, place: sequence <= self._row.through)
    patch.setattr(SequenceTracker, "new_among", lambda self, first, places: None)


@mutant
def events_without_a_key_go_anywhere(patch: Patch) -> None:
    dice = random.Random(1)

    def places(first: int, count: int) -> "npt.NDArray[np.uint64]":
        return np.full(count, dice.randrange(1 << 64), dtype=np.uint64)

    patch.setattr(writer, "places_without_key", places)
    patch.setattr(routing, "sequence_place", lambda sequence: dice.randrange(1 << 64))


@mutant
def many_events_without_a_key_go_where_the_first_one_goes(patch: Patch) -> None:
    places = sequences.places_without_key
    patch.setattr(writer, "places_without_key", lambda first, count: places(first, 1).repeat(count))


@mutant
def left_overs_are_moved_segment_by_segment(patch: Patch) -> None:
    patch.setattr(
        delivery, "left_over", lambda segments: [each for one in segments for each in reroute.left_over([one])]
    )


def _left_over_blocks(segments: Iterable[SegmentWriter]) -> list[Events]:
    found = [block.unpack() for segment in segments for block in segment.remove_all()]
    return sorted(found, key=lambda events: events.order)


@mutant
def left_over_blocks_are_moved_whole(patch: Patch) -> None:
    patch.setattr(delivery, "left_over", _left_over_blocks)


@mutant
def parts_of_a_call_are_not_joined(patch: Patch) -> None:
    def left_over(segments: Iterable[SegmentWriter]) -> list[Events]:
        blocks = _left_over_blocks(segments)
        calls = [events for events in blocks if events.call is not None]
        singles = [events for events in blocks if events.call is None]
        if singles:
            calls += reroute._between(joined(singles), calls)
        return sorted(calls, key=lambda events: events.order)

    patch.setattr(delivery, "left_over", left_over)


@mutant
def nobody_waits_for_the_fate_of_what_was_sent(patch: Patch) -> None:
    patch.setattr(SegmentWriter, "is_drained", property(lambda self: True))


@mutant
def what_a_deleted_segment_had_stored_is_not_asked_for(patch: Patch) -> None:
    patch.setattr(delivery, "is_block_stored", lambda block, row: False)


@mutant
def an_older_writer_is_not_fenced(patch: Patch) -> None:
    store = ModelServer._store
    patch.setattr(ModelServer, "_store", lambda self, append: store(self, append._replace(writer_epoch=self.epoch)))


@mutant
def an_opening_tells_what_is_not_stored_yet(patch: Patch) -> None:
    reply_of = ModelServer._writer

    def early(self: ModelServer, message: m.OpenWriter | m.GetWriter) -> m.Message:
        row, self.row = self.row, self.row.copy()
        for append in self.arrived:
            _store_in_row(self, append)
        reply = reply_of(self, message)
        self.row = row
        return reply

    patch.setattr(ModelServer, "_writer", early)


def _store_in_row(server: ModelServer, append: Append) -> None:
    segment = server.segments.get(append.segment_id)
    if segment is not None and append.sequences is not None:
        keys = KeyRange.inclusive(segment.low, segment.last)
        server.row.store(keys, last=append.sequences.last, stored_below=append.sequences.stored_below)


@mutant
def a_block_must_be_above_every_mark_of_its_range(patch: Patch) -> None:
    patch.setattr(
        SequenceRow,
        "lowest_in",
        lambda self, keys: max(self.stored_at(low) for low in (*self._lows, keys.low) if low in keys),
    )


@mutant
def an_event_that_failed_is_forgotten(patch: Patch) -> None:
    """Nobody is told anything by a writer that failed, unless it continues to tell."""
    patch.setattr(SequenceTracker, "fail", lambda self, first: None)
    stop = Delivery.stop

    def told(self: Delivery, error: Exception) -> None:
        stop(self, error)  # type: ignore[arg-type]  # of the right kind
        self.tell_stored()

    patch.setattr(Delivery, "stop", told)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_walk_shows_each_rule_that_is_left_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    for seed in range(WALKS_OF_A_MUTANT_MAX):
        try:
            walk(seed)
        except (AssertionError, MillraceError, ExceptionGroup):
            return
    pytest.fail(f"{WALKS_OF_A_MUTANT_MAX} walks went well")


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1000)
    chosen = parser.parse_args()
    for seed in range(chosen.first, chosen.first + chosen.count):
        walk(seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
