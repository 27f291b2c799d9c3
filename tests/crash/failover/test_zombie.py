"""A server that another one has superseded acknowledges nothing, deletes nothing, and ends with an error."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.crash.failover.networks import Lost, why_no_network
from tests.crash.failover.zombie import FROZEN
from tests.support.s3 import NO_VERSITYGW, find_versitygw

ROOT: Final = Path(__file__).resolve().parents[3]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_versitygw() is None, reason=NO_VERSITYGW)]


def test_one_that_stood_still_beyond_lease_takeover_and_collection(tmp_path: Path) -> None:
    """Behaviour 91: SIGSTOP, then SIGCONT; appends were in its socket all the time."""
    haunt(FROZEN, tmp_path)


@pytest.mark.parametrize("lost", Lost)
def test_one_that_cannot_reach_the_store(lost: Lost, tmp_path: Path) -> None:
    """Behaviours 91 and 92: packets are lost between it and the store, on the way there or back."""
    if reason := why_no_network():
        pytest.skip(reason)
    haunt(lost.value, tmp_path)


def haunt(how: str, folder: Path) -> None:
    """Run the program, in a network of its own if that can be had."""
    command = [sys.executable, "-m", "tests.crash.failover.zombie", how, str(folder / "pair")]
    subprocess.run(command, cwd=ROOT, check=True)
