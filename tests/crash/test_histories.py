"""Recorded histories of a server whose disk is slow, fails and loses power are linearizable, refusals included.

The clients append conditionally, compare and set attributes, create, seal and delete; what they are refused counts as
much as what succeeds. Each seed is a history; the disk and the clients draw from it, the machine adds its own timing.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.server.container.in_flight import InFlight
from tests.crash.histories.linearizability import Operation
from tests.crash.histories.recorded import lines_of
from tests.crash.histories.segments import is_right
from tests.crash.histories.world import World
from tests.support.folders import tmp_path
from tests.support.history import check

__all__ = ["tmp_path"]

SEEDS_PER_MUTANT = 20


async def wrong_histories(folder: Path, seed: int) -> list[list[Operation]]:
    """Return the histories of a world, by name, that cannot have been."""
    asyncio.get_running_loop().set_debug(False)
    world = World(folder, seed)
    await world.run()
    wrong = []
    for name, history in world.histories.items():
        violations = check(lines_of(name, history)).violations
        if not is_right(history):
            print(f"the checker finds {len(violations)} violations", *violations[:1], sep="\n")
            wrong.append(history)
        else:
            assert not violations, f"the search finds an order, the checker {violations[0]}"
    return wrong


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(8))
async def test_what_clients_are_told_could_have_happened_one_after_the_other(tmp_path: Path, seed: int) -> None:
    """Behaviour 84: a refusal rests on durable state only."""
    for history in await wrong_histories(tmp_path, seed):
        print(*history, sep="\n")
        pytest.fail(f"the history of seed {seed} is not linearizable")


def answer_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InFlight, "follow", lambda self, follower: follower.settle())


def answer_requests_at_once(patch: pytest.MonkeyPatch) -> None:
    async def settled(self: InFlight) -> None:
        await asyncio.sleep(0)

    patch.setattr(InFlight, "settled", settled)


MUTANTS = [
    answer_at_once,
    answer_requests_at_once,
]


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.__name__ for mutant in MUTANTS])
async def test_a_server_that_tells_too_early_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """Behaviour 84: each way to break the rule makes a history that is not linearizable."""
    mutant(monkeypatch)
    for seed in range(SEEDS_PER_MUTANT):
        if await wrong_histories(tmp_path / str(seed), seed):
            print(f"found by seed {seed}")
            return
    pytest.fail("not found")
