"""The tortures: tables of actors and faults."""

from collections.abc import Mapping
from functools import partial
from typing import Final

import millrace
from tests.crash.transactions.chain import COOKED, CURSOR, RAW
from tests.crash.transactions.lanes import STREAMS
from tests.crash.transactions.queries import check_batches, recorded_producer

from . import actors, faults
from .world import Fault, Role, Torture, World

ALL: Final = (*STREAMS, RAW, COOKED)
PLAIN: Final = "torture/plain"
DEATHS: Final[Mapping[Fault, int]] = {
    faults.kill: 3,
    faults.lose_power: 3,
    faults.kill_at_disk: 4,
    faults.restart: 1,
    faults.cut_connections: 3,
    faults.stand_still: 2,
    faults.stall_clients: 2,
    faults.fail_syncs: 1,
}

QUERY: Final = "query"


async def judge_transactions(world: World) -> None:
    """Assert that each batch is there once, and that each raw event was moved on once, in the order of its key."""
    producer = await recorded_producer(world.recorder, world.admin, "outcomes", QUERY)
    events = {name: seen.events for name, seen in world.seen.items()}
    world.counted += check_batches({name: events[name] for name in STREAMS}, [] if producer is None else [producer])
    cursor = await world.admin.cursors(RAW).get(CURSOR)
    left = await world.admin.distance(cursor or millrace.HEAD, millrace.TAIL, stream=RAW)
    assert not left.events, f"{left} of the raw stream were moved on by nobody"
    cooked = [(key, value.split("/", 5)[5]) for key, value in events[COOKED]]
    for key in {key for key, _ in (*events[RAW], *cooked)}:
        before, after = ([value for each, value in of if each == key] for of in (events[RAW], cooked))
        assert before == after, f"of key {key} {before} was made {after}"


PRODUCERS: Final = Torture(
    name="producers",
    streams=(PLAIN,),
    clients=(
        Role("keyed", partial(actors.keyed, stream=PLAIN), is_mortal=True),
        Role("keyless", partial(actors.keyless, stream=PLAIN), is_mortal=True),
        Role("unnamed", partial(actors.write_unnamed, stream=PLAIN), is_mortal=True),
    ),
    disturbers=(
        Role("scale", partial(actors.scale, streams=(PLAIN,))),
        Role("truncate", partial(actors.truncate, streams=(PLAIN,))),
        Role("look", partial(actors.look, streams=(PLAIN,))),
    ),
    faults=DEATHS,
)

TRANSACTIONS: Final = Torture(
    name="transactions",
    streams=ALL,
    clients=(
        *(Role(f"decide-{number}", actors.decide, is_mortal=True) for number in range(2)),
        *(Role(f"cook-{number}", actors.cook, is_mortal=True) for number in range(2)),
        *(Role(f"transact-{number}", actors.transact, is_mortal=True) for number in range(3)),
        *(Role(f"query-{number}", partial(actors.query, writer=QUERY), is_mortal=True) for number in range(2)),
        Role("raw", partial(actors.keyed, stream=RAW), is_mortal=True),
    ),
    disturbers=(
        Role("scale", partial(actors.scale, streams=ALL)),
        Role("truncate", partial(actors.truncate, streams=STREAMS)),
        Role("cuts", partial(actors.read_cuts, streams=STREAMS, reads_together=False)),
        Role("cuts together", partial(actors.read_cuts, streams=STREAMS, reads_together=True)),
        Role("look", partial(actors.look, streams=ALL)),
    ),
    faults={**DEATHS, faults.scale_all: 2, faults.scale_all_still: 2},
    producers=(QUERY,),
    judge=judge_transactions,
    pause_s=0.3,
    seconds=3.0,
)

TORTURES: Final = {each.name: each for each in (PRODUCERS, TRANSACTIONS)}
