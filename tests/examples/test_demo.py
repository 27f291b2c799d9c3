"""The demo from its first line to its last: what it counts is what was written, and a fault is found."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import millrace
from millrace.examples.demo.queries import what_is_missing
from tests.cli.conftest import PROGRAM, Run

pytestmark = pytest.mark.slow

READINGS = 17_518


def test_without_spark_the_rest_is_counted_and_the_data_can_be_kept(run: Run, tmp_path: Path) -> None:
    """Behaviours 5 and 24: the server is killed in the middle of the load."""
    outcome = run("demo", "--no-spark", "--seconds", "4", "--json", "--keep", tmp_path / "kept")

    assert outcome.code == 0, outcome.err
    told = outcome.json
    assert told["is_proved"]
    assert told["spark_skipped"] == "--no-spark was given"
    assert [kill["process"] for kill in told["kills"]] == ["server"]
    assert told["proofs"] == [
        {
            "stream": "demo/temperatures",
            "expected": READINGS,
            "once": READINGS,
            "missing": 0,
            "extra": 0,
            "misplaced": 0,
            "holds": True,
        }
    ]
    assert run("verify", tmp_path / "kept").code == 0


@pytest.mark.parametrize("fault", ["drop", "double"])
def test_a_fault_is_found(run: Run, fault: str) -> None:
    """The proof can fail: events are lost, or one is there twice, before it is made."""
    outcome = run("demo", "--no-spark", "--seconds", "1", "--fault", fault, "--json")

    assert outcome.code == 1
    assert not outcome.json["is_proved"]
    (proof,) = outcome.json["proofs"]
    assert proof["expected"] == READINGS
    if fault == "drop":
        assert proof["missing"] == READINGS - proof["once"] > 0
        assert proof["extra"] == 0
    else:
        assert (proof["missing"], proof["extra"], proof["once"]) == (0, 1, READINGS - 1)


def test_a_fault_is_said(run: Run) -> None:
    outcome = run("demo", "--no-spark", "--seconds", "1", "--fault", "double")

    assert outcome.code == 1
    assert "The proof FAILED" in outcome.out
    assert "Nothing is missing" not in outcome.out


def test_sigterm_ends_the_server_and_removes_the_data() -> None:
    with subprocess.Popen(
        [*PROGRAM, "demo", "--no-spark", "--seconds", "60"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        said = ""
        while (found := re.search(r"1\. A server +(\S+), a process of its own, data in (\S+)", said)) is None:
            line = demo.stdout.readline()
            assert line, demo.communicate()
            said += line
        address, data = found.groups()
        assert Path(data).is_dir()
        demo.terminate()
        demo.communicate()

    assert demo.returncode == 128 + signal.SIGTERM
    assert not Path(data).exists()
    with pytest.raises(millrace.ServerUnreachableError):
        millrace.blocking.connect(address)


@pytest.mark.spark
def test_the_whole_demo() -> None:
    """Behaviours 5, 22, 24 and 55. As a process of its own, as it is run by those who try it."""
    program = "import sys; from millrace.cli.main import main; sys.exit(main(['demo']))"
    demo = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert demo.returncode == 0, demo.stdout + demo.stderr
    lines = [re.split(r"  +", line.strip()) for line in demo.stdout.splitlines()]
    for stream in ("demo/temperatures", "demo/celsius"):
        assert [stream, f"{READINGS:,}", f"{READINGS:,}", "0", "0", "0"] in lines
    # Of each quarter and sensor, how many readings the question in SQL has counted.
    assert sum(int(cells[2]) for cells in lines if cells[1:2] in (["KSEA"], ["KSFO"])) == READINGS
    assert "killed the server with SIGKILL" in demo.stdout
    assert "killed the driver of Spark with SIGKILL" in demo.stdout
    assert " split " in demo.stdout
    assert "tier 2, forever" in demo.stdout
    assert "Nothing is missing" in demo.stdout
    assert "WARN" not in demo.stdout + demo.stderr
    assert "Warning" not in demo.stdout + demo.stderr


def test_what_spark_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)

    assert "Java 17" in what_is_missing()


def test_a_folder_that_exists_is_not_taken(run: Run, tmp_path: Path) -> None:
    assert run("demo", "--keep", tmp_path).code == 2
