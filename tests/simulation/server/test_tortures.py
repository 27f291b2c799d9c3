"""Seeds of tortures in which nothing that was acknowledged is lost, doubled or out of order; and equal runs of a seed.

One seed alone, with all that happens in it: python -m tests.simulation --torture NAME --only SEED
"""

import subprocess
import sys
from dataclasses import replace
from typing import Final

import pytest

from .tortures import TORTURES
from .world import run_torture

CORPUS: Final = {"producers": (0, 1, 2, 4), "transactions": (2,)}
"""Seeds that stay in the gate: cheap ones, and those that have found a fault."""
SEEDS: Final = {"producers": range(5, 60), "transactions": range(3, 37)}
"""More of them, for a minute or two of a processor."""
SHORT: Final = replace(TORTURES["transactions"], seconds=0.3)
TRACE: Final = f"""
from dataclasses import replace
from tests.simulation.server.tortures import TORTURES
from tests.simulation.server.world import run_torture
print(run_torture(replace(TORTURES["transactions"], seconds={SHORT.seconds}), 0).trace)
"""


@pytest.mark.parametrize(("name", "seed"), [(name, seed) for name, seeds in CORPUS.items() for seed in seeds])
def test_nothing_is_lost_doubled_or_reordered(name: str, seed: int) -> None:
    outcome = run_torture(TORTURES[name], seed)

    assert not outcome.violations, str(outcome)
    assert outcome.counted["checked acknowledged"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("name", TORTURES)
def test_more_seeds(name: str) -> None:
    for seed in SEEDS[name]:
        outcome = run_torture(TORTURES[name], seed)
        assert not outcome.violations, str(outcome)


def test_a_seed_has_the_same_history_in_each_process() -> None:
    trace = run_torture(SHORT, 0).trace

    assert (
        subprocess.run([sys.executable, "-c", TRACE], check=True, capture_output=True, text=True).stdout == f"{trace}\n"
    )
