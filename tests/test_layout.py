"""Guards what no reader would notice: links, spellings of imports, words, content of the wheel, import arrows."""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tables import table

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("cli", "client", "examples", "model", "server", "spark_source", "wire")
# Everything that is Python and ours, installed or not.
FOLDERS = (*PARTS, "src", "tests", "applications", "benchmarks", "loadtests")


def source_files(*folders: str) -> Iterator[Path]:
    # rglob does not enter links to folders, so the files under src/millrace/<part> are seen once, in the real folder.
    for folder in folders:
        yield from sorted(path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


def imported_names(path: Path) -> Iterator[str]:
    """Return the modules that a file imports by name, each as it is written."""
    for line in re.findall(r"^[ \t]*(?:from (\S+) import|import ([\w. ,]+))", path.read_text(), re.MULTILINE):
        yield from (name.split()[0] for name in "".join(line).split(",") if name.strip())


def run(*arguments: str) -> str:
    """Run a program in the repository; its whole output is the failure message."""
    finished = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, f"{' '.join(arguments)}\n{finished.stdout}{finished.stderr}"
    return finished.stdout


@table("part", PARTS)
def test_every_part_is_linked_into_the_package(part: str) -> None:
    link = ROOT / "src" / "millrace" / part

    assert link.is_symlink()
    assert os.readlink(link) == f"../../{part}"


def test_every_top_folder_of_the_package_is_a_known_part() -> None:
    links = {path.name for path in (ROOT / "src" / "millrace").iterdir() if path.is_symlink()}

    assert links == set(PARTS)


def test_no_file_imports_a_part_by_its_folder_name() -> None:
    """`import wire` works in no installation: only `millrace.wire` does."""
    bare = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in source_files(*FOLDERS)
        for name in imported_names(path)
        if name.split(".")[0] in PARTS
    ]

    assert bare == []


def test_every_folder_with_python_in_it_is_a_package() -> None:
    """The wheel would hold the modules, but type checkers and the importer of the tests would not see them."""
    folders = {path.parent for path in source_files(*PARTS, "tests")}

    assert [str(folder.relative_to(ROOT)) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_no_word_means_two_directions() -> None:
    """What is behind something may be older or newer, before or after it: those words say which."""
    word = re.compile(r"(?<![a-z])(behind|for[ _]ever)(?![a-z])", re.IGNORECASE)
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *source_files(*FOLDERS, "docs")]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in pages
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if word.search(line)
    ]

    assert found == []


@pytest.mark.slow
def test_the_wheel_holds_every_module(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT))

    (wheel,) = tmp_path.glob("millrace_streams-*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}

    assert packed == expected_content()


@pytest.mark.slow
def test_a_wheel_built_from_the_source_distribution_holds_every_module(tmp_path: Path) -> None:
    """The path of `pip install` from an sdist, where a build that follows links would lose whole parts."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT))

    (wheel,) = tmp_path.glob("millrace_streams-*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}

    assert packed == expected_content()


def expected_content() -> set[str]:
    modules = {f"millrace/{path.relative_to(ROOT)}" for path in source_files(*PARTS)}
    # What the page of the console is made of.
    modules |= {f"millrace/{path.relative_to(ROOT)}" for path in (ROOT / "server/console/static").iterdir()}
    own = {str(path.relative_to(ROOT / "src")) for path in source_files("src")}
    return modules | own | {"millrace/py.typed"}


@pytest.mark.slow
def test_the_import_arrows_hold() -> None:
    run(str(Path(sys.executable).with_name("lint-imports")), "--no-cache")
