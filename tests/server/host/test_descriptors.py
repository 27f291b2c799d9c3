"""What a process does with descriptors that it was not given."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

PROGRAM = """
import os, sys
from millrace.server.host.descriptors import occupy_standard_descriptors
occupy_standard_descriptors()
print("to standard output", flush=True)
print("to standard error", file=sys.stderr, flush=True)
opened = os.open(sys.executable, os.O_RDONLY)
with open(sys.argv[1], "w") as result:
    print(opened > 2 and sys.stdin.read() == "", file=result)
"""


def closing(numbers: tuple[int, ...]) -> Callable[[], None]:
    def close() -> None:
        for number in numbers:
            os.close(number)

    return close


@pytest.mark.parametrize("closed", [(), (0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_no_file_takes_the_place_of_a_standard_stream(
    tmp_path_factory: pytest.TempPathFactory, closed: tuple[int, ...]
) -> None:
    """Started with closed streams, what is printed must not land in the first file that is opened."""
    result = tmp_path_factory.mktemp("result") / "result"

    done = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM, str(result)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        preexec_fn=closing(closed),
        check=True,
    )

    assert result.read_text() == "True\n"
    assert done.stdout == ("" if 1 in closed else "to standard output\n")
    assert done.stderr == ("" if 2 in closed else "to standard error\n")
