"""Servers are started on folders in memory."""

from tests.support.folders import tmp_path
from tests.support.pins import _all_pins_are_released

__all__ = ["_all_pins_are_released", "tmp_path"]
