"""The tortures find each mutant within a stated number of seeds."""

import pytest

from .mutants import MUTANTS
from .tortures import TORTURES


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    mutant = MUTANTS[name]
    for seed in range(mutant.seeds_count):
        if mutant.run(TORTURES[mutant.torture], seed).violations:
            return
    pytest.fail(f"{mutant.seeds_count} seeds of {mutant.torture} have found nothing")
