"""Servers are started on folders in memory; `server`, `peer` and `other` are what most tests need."""

from tests.support.served import _containers_are_settled, other, peer, server, tmp_path

__all__ = ["_containers_are_settled", "other", "peer", "server", "tmp_path"]
