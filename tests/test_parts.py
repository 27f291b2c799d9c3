"""The parts of the suite: each file of tests is in one, and a command keeps its time."""

from pathlib import Path

import pytest

from tests.parts import DRAWN_COUNT, PARTS, PYTHON, ROOT, commands, draw, main

FOLDERS = {name: part.folder for name, part in PARTS.items() if part.folder}


def selected(name: str) -> set[Path]:
    """Return the files that the command of a part gives to pytest."""
    (command,) = commands(PARTS[name], seed=1, minutes=1)
    ignored = [ROOT / each.removeprefix("--ignore=") for each in command if each.startswith("--ignore=")]
    files = (ROOT / PARTS[name].folder).rglob("test_*.py")
    return {path for path in files if not any(path.is_relative_to(folder) for folder in ignored)}


def test_each_file_of_tests_is_in_one_part() -> None:
    of_parts = [path for name in FOLDERS for path in selected(name)]

    assert sorted(of_parts) == sorted((ROOT / "tests").rglob("test_*.py"))


def test_each_command_has_a_seed_or_marks_and_its_share_of_the_minutes() -> None:
    assert commands(PARTS["matrix"], seed=7, minutes=20) == [
        [*PYTHON, "tests.spark_source.kills", "--seed", "7", "--minutes", "10"],
        [*PYTHON, "tests.spark_source.kills.test_chain", "--seed", "7", "--minutes", "10"],
    ]
    (server,) = commands(PARTS["server"], seed=7, minutes=20)
    assert server[-4:] == ["-m", "slow or spark", "--minutes-max=20", "tests/server"]
    (properties,) = commands(PARTS["properties"], seed=7, minutes=20)
    assert properties[-3:] == ["--hypothesis-profile=thorough", "--hypothesis-seed=7", "--order-seed=7"]
    assert commands(PARTS["spark40"], seed=7, minutes=20) == [["make", "spark40"]]


def test_equal_content_draws_equal_parts_and_each_part_is_drawn_by_some() -> None:
    drawn = [draw(f"{number:040x}") for number in range(200)]

    assert draw(f"{7:040x}") == drawn[7]
    assert all(len(set(names)) == DRAWN_COUNT for names, _ in drawn)
    assert {name for names, _ in drawn for name in names} == {name for name, part in PARTS.items() if part.is_drawn}


def test_without_a_name_the_parts_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0

    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(PARTS)


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve"])

    assert "invalid choice: 'serve'" in capsys.readouterr().err
