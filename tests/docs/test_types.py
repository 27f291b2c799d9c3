import importlib.resources
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def extract(folder: Path) -> list[Path]:
    """Write what the pages show into files: each program of the README alone, those of another page as one.

    The programs of a page are run in their order, in one process: so a later one may use what an earlier one made.
    """
    files = []
    for page in PAGES:
        programs = _PROGRAM.findall(page.read_text(encoding="utf-8"))
        for number, text in enumerate(programs if page.name == "README.md" else ["\n".join(programs)]):
            if text:
                name = re.sub(r"\W+", "_", f"{page.relative_to(ROOT).with_suffix('')}_{number}")
                files.append(folder / f"{name}.py")
                files[-1].write_text(text, encoding="utf-8")
    return files


@pytest.mark.slow
def test_the_programs_of_the_pages_and_the_types_of_the_client_are_right_to_mypy(tmp_path: Path) -> None:
    programs = extract(tmp_path)
    assert len(programs) > 8
    options = tmp_path / "mypy.ini"
    options.write_text("[mypy]\nstrict = true\n[mypy-pyarrow.*]\nignore_missing_imports = true\n")  # it has no types
    checked = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--config-file", options,
            "--cache-dir", ROOT / ".mypy_cache" / "pages", *programs, ROOT / "tests" / "client" / "user_types.py",
        ],
        env={**os.environ, "MYPYPATH": str(ROOT / "src")}, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"no issues found in {len(programs) + 1} source files" in checked.stdout


def test_type_checkers_are_told_that_there_are_types() -> None:
    assert importlib.resources.files("millrace").joinpath("py.typed").is_file()
