import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.environment import SET, suite_environment
from tests.support.tables import table
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
HOSTILE = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "COLUMNS": "20",
    "FORCE_COLOR": "1",
    "GITHUB_ACTIONS": "true",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "LANG": "de_DE.ISO-8859-1",
    "LC_ALL": "C",
    "LINES": "3",
    "MILLRACE_ADDRESS": "127.0.0.1:9",
    "NO_COLOR": "1",
    "PYTHONWARNINGS": "error",
    "TERM": "dumb",
    "TZ": "Asia/Kathmandu",
    "http_proxy": "http://127.0.0.1:9",
}


@table("name", sorted(HOSTILE))
def test_a_variable_of_the_caller_does_not_reach_the_suite(name: str) -> None:
    assert suite_environment({"PATH": "/bin", "PIP_INDEX_URL": "u", name: HOSTILE[name]}) == {
        "PATH": "/bin",
        "PIP_INDEX_URL": "u",
        **SET,
    }


def test_this_process_has_the_environment_of_the_suite() -> None:
    assert suite_environment(os.environ).items() <= os.environ.items()
    assert os.environ["HOME"]


@pytest.mark.slow
def test_the_tests_of_a_terminal_pass_for_any_caller() -> None:
    """The environment has no HOME and no locale, and says everything else that programs ask for."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/examples/test_demo_screen.py",
               "tests/cli/test_output.py", "tests/cli/test_connecting.py"]  # fmt: skip
    environment = {name: value for name, value in HOSTILE.items() if name != "PYTHONWARNINGS"}

    done = subprocess.run(
        command, cwd=ROOT, env={"PATH": os.environ["PATH"], **environment}, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout
