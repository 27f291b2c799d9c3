"""Servers are started on folders in memory; `server` and `peer` are what most tests need."""

from tests.support.served import _all_pins_are_released, peer, server, tmp_path

__all__ = ["_all_pins_are_released", "peer", "server", "tmp_path"]
