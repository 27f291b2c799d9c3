"""Seeds of tortures in which nothing that was acknowledged is lost, doubled or out of order; and equal runs of a seed.

One seed alone, with all that happens in it: python -m tests.simulation --torture NAME --only SEED
"""

import subprocess
import sys
from typing import Final

import pytest

from .tortures import TORTURES
from .world import run_torture

CORPUS: Final = {"producers": (0, 1, 2), "transactions": (2, 7)}
"""Seeds that stay in the gate: cheap ones, and those that have found a fault."""
TRACE: Final = """
from tests.simulation.server.tortures import TORTURES
from tests.simulation.server.world import run_torture
print(run_torture(TORTURES["producers"], 0).trace)
"""


@pytest.mark.parametrize(("name", "seed"), [(name, seed) for name, seeds in CORPUS.items() for seed in seeds])
def test_nothing_is_lost_doubled_or_reordered(name: str, seed: int) -> None:
    outcome = run_torture(TORTURES[name], seed)

    assert not outcome.violations, str(outcome)
    assert outcome.counted["checked acknowledged"] > 100


def test_a_seed_is_the_same_in_each_process() -> None:
    traces = [
        subprocess.run(
            [sys.executable, "-c", TRACE], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2")
    ]

    assert traces[0] == traces[1]
    assert len(traces[0].strip()) == 32
