"""Servers are started on folders in memory; `server`, `peer` and `other` are what most tests need."""

from tests.support.served import _all_pins_are_released, other, peer, server, tmp_path

__all__ = ["_all_pins_are_released", "other", "peer", "server", "tmp_path"]
