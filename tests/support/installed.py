"""Environments in which the wheel of this tree is installed, with some of the packages that are here and no others."""

import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable
from importlib.metadata import distribution, requires
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

ROOT: Final = Path(__file__).resolve().parents[2]

# The command as the script that an installer makes of it.
MILLRACE: Final = (
    "import sys; from importlib.metadata import entry_points; "
    "(script,) = entry_points(group='console_scripts', name='millrace'); sys.exit(script.load()())"
)


def build_wheel(folder: Path, *, source: Path = ROOT) -> Path:
    """Return the wheel of a tree, built into a folder as a user would, but with the packages that are here."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    built = subprocess.run(build, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = folder.glob("millrace_streams-*.whl")
    return wheel


def make_environment(folder: Path, wheel: Path) -> Path:
    """Make a virtual environment that holds the wheel alone; return the folder of its packages."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    return packages


def requirements_of(wheel: Path, extras: Iterable[str] = ()) -> list[Requirement]:
    """Return what the wheel asks for, with some extras, on this machine."""
    with zipfile.ZipFile(wheel) as content:
        (name,) = (name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
        lines = re.findall(r"^Requires-Dist: (.*)$", content.read(name).decode(), re.MULTILINE)
    return _applicable(lines, extras)


def link_packages(packages: Path, required: Iterable[Requirement]) -> None:
    """Put packages that are here, with all that they need, into an environment."""
    for requirement in required:
        found = distribution(requirement.name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(found.locate_file(top))))
        link_packages(packages, _applicable(requires(requirement.name) or [], requirement.extras))


def run_python(packages: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run the Python of an environment, with nothing of this one."""
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "PATH", "TMPDIR") if name in os.environ}
    return subprocess.run(
        [python_of(packages), *arguments], capture_output=True, text=True, check=False, env={**kept, **environment}
    )


def python_of(packages: Path) -> Path:
    """Return the Python of an environment."""
    return packages.parents[2] / "bin" / "python"


def _applicable(lines: Iterable[str], extras: Iterable[str]) -> list[Requirement]:
    every = [Requirement(line) for line in lines]
    chosen = ["", *extras]
    return [each for each in every if each.marker is None or any(each.marker.evaluate({"extra": x}) for x in chosen)]
