"""The fixtures of tests of streams, for all kinds."""

from tests.server.streams.conftest import _containers_are_settled, other, peer, run, scenario, streams, tmp_path

__all__ = ["_containers_are_settled", "other", "peer", "run", "scenario", "streams", "tmp_path"]
