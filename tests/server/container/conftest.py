"""A container in memory: `run`, `peer` and `other` are what most tests need."""

from tests.support.folders import tmp_path
from tests.support.scenario_fixtures import _containers_are_settled, other, peer, run, scenario

__all__ = ["_containers_are_settled", "other", "peer", "run", "scenario", "tmp_path"]
