"""The tortures: tables of actors and faults."""

from collections.abc import Mapping
from functools import partial
from typing import Final

from tests.crash.transactions.chain import COOKED, RAW
from tests.crash.transactions.lanes import STREAMS

from . import actors, faults
from .world import Fault, Role, Torture

ALL: Final = (*STREAMS, RAW, COOKED)
PLAIN: Final = "torture/plain"
DEATHS: Final[Mapping[Fault, int]] = {
    faults.kill: 3,
    faults.lose_power: 3,
    faults.kill_at_disk: 4,
    faults.restart: 1,
    faults.cut_connections: 3,
    faults.stand_still: 2,
}

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
        Role("decide", actors.decide),
        Role("cook", actors.cook),
        *(Role(f"transact-{number}", actors.transact, is_mortal=True) for number in range(3)),
        *(Role(f"query-{number}", partial(actors.query, writer="query"), is_mortal=True) for number in range(2)),
        Role("raw", partial(actors.keyed, stream=RAW), is_mortal=True),
    ),
    disturbers=(
        Role("scale", partial(actors.scale, streams=ALL)),
        Role("cuts", partial(actors.read_cuts, streams=STREAMS, reads_together=False)),
        Role("cuts together", partial(actors.read_cuts, streams=STREAMS, reads_together=True)),
        Role("look", partial(actors.look, streams=ALL)),
    ),
    faults=DEATHS,
)

TORTURES: Final = {each.name: each for each in (PRODUCERS, TRANSACTIONS)}
