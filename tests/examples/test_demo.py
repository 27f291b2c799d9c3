"""The demo from its first line to its last: what `make demo` shows must be there."""

import subprocess
import sys
from pathlib import Path

import pytest

from millrace.examples.demo.queries import what_is_missing
from tests.cli.conftest import Run

pytestmark = pytest.mark.slow


def test_without_spark_the_rest_is_shown_and_the_data_can_be_kept(run: Run, tmp_path: Path) -> None:
    outcome = run("demo", "--no-spark", "--keep", tmp_path / "kept")

    assert outcome.code == 0
    assert "everything is as it was written" in outcome.out
    assert run("verify", tmp_path / "kept").code == 0


@pytest.mark.spark
def test_the_whole_demo() -> None:
    """As a process of its own: Spark stays in its process until that ends."""
    program = "import sys; from millrace.cli.main import main; sys.exit(main(['demo']))"
    demo = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert demo.returncode == 0, demo.stderr
    for piece in ("KSEA", "KSFO", "8759", "01 Jan", "mean F", "tier 2, forever", "Try next", "object"):
        assert piece in demo.stdout
    assert "WARN" not in demo.stdout + demo.stderr
    assert "Warning" not in demo.stdout + demo.stderr


def test_what_spark_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)

    assert "Java 17" in what_is_missing()


def test_a_folder_that_exists_is_not_taken(run: Run, tmp_path: Path) -> None:
    assert run("demo", "--keep", tmp_path).code == 2
