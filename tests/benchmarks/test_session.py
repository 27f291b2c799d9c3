from pathlib import Path

import pytest

from benchmarks.session import AbsentError, Session, machine


def test_a_figure_is_measured_once_in_a_run(tmp_path: Path) -> None:
    runs = []

    def measure(session: Session) -> int:
        runs.append(session)
        return len(runs)

    session = Session(tmp_path)

    assert (session.once(measure), session.once(measure)) == (1, 1)
    assert runs == [session]


def test_an_absent_rival_is_looked_for_once(tmp_path: Path) -> None:
    runs = []

    def measure(session: Session) -> int:
        runs.append(session)
        raise AbsentError("apt-get install rival")

    session = Session(tmp_path)
    for _ in range(2):
        with pytest.raises(AbsentError, match="apt-get install rival"):
            session.once(measure)

    assert len(runs) == 1


def test_effort_scales_work_but_never_to_nothing(tmp_path: Path) -> None:
    session = Session(tmp_path, effort=0.2)

    assert (session.count(1_000), session.count(1), session.seconds(2.0)) == (200, 1, 0.4)


def test_the_machine_is_described_with_its_disk(tmp_path: Path) -> None:
    assert str(tmp_path) in machine(tmp_path)["disk"]
