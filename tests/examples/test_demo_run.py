"""What the demo does when a part of it does not do what it should."""

import asyncio
from pathlib import Path

import pytest

from millrace.client.testing import server
from millrace.examples.demo.data import readings
from millrace.examples.demo.run import DemoError, Run
from millrace.examples.demo.screen import Screen
from millrace.examples.running import Program

pytestmark = pytest.mark.slow


def test_a_driver_that_ends_by_itself_is_told(tmp_path: Path) -> None:
    """It would be waited for in vain otherwise."""
    driver = Program("this", log=tmp_path / "spark.log")  # it prints some lines, and ends
    with server() as started:
        run = Run(started, driver, readings()[:1000], screen=Screen(is_quiet=True), duration_s=1)

        with pytest.raises(DemoError, match="the driver of Spark has ended"):
            asyncio.run(run.run(fault=None))
