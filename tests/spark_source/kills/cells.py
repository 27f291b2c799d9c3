"""Which cells of the matrix are run: all by `make killmatrix`, and those that are cheap in the suite."""

import os
from typing import Final

import pytest

SEED_VARIABLE: Final = "KILL_MATRIX_SEED"
WHOLE_VARIABLE: Final = "KILL_MATRIX_WHOLE"

WHOLE: Final = bool(os.environ.get(WHOLE_VARIABLE))

only_in_the_whole_matrix = pytest.mark.skipif(not WHOLE, reason="of the kill matrix, `make killmatrix` runs it")
"""For cells that start one more driver, which takes long."""


def cells(*row: str, suite: str) -> tuple[str, ...]:
    """Return the cells of a row that are run.

    Args:
        suite: the only one of them that the suite runs.
    """
    return row if WHOLE else (suite,)
