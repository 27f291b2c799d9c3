"""Repair without the command line; what it prints is in `tests/cli/test_repair.py`."""

from pathlib import Path

from millrace.server.offline.repair import ContainerRepair, repair


def test_a_loss_is_yielded_with_its_plan_and_once_accepted_not_again(stopped_folder: Path) -> None:
    for log in (stopped_folder / "containers" / "0000" / "wal").glob("wal-*.log"):
        log.unlink()

    (found,) = repair(stopped_folder)
    (accepted,) = repair(stopped_folder, accept_loss=True)
    (repaired,) = repair(stopped_folder)

    assert found.loss is not None
    assert found.plan is not None
    assert [hole.name for hole in found.plan.holes] == ["raw/a"]
    assert (found.is_accepted, accepted.is_accepted) == (False, True)
    assert repaired == ContainerRepair(container=0)
