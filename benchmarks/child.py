"""One half of a benchmark in a process of its own: options in as JSON, result out as JSON."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final, TypeVar

R = TypeVar("R")

_LIFETIME_S: Final = 120.0


class ChildFailedError(Exception):
    """A measuring process failed; the text is what it said."""


def measured(
    module: str,
    options: Any,
    result: Callable[..., R],
    *,
    python: str = sys.executable,
    lifetime_s: float = _LIFETIME_S,
    environment: Mapping[str, str] | None = None,
) -> R:
    """Run `python -m benchmarks.<module>` with a record of options and return the record that it prints.

    Args:
        python: of the environment that it needs.
        lifetime_s: it is killed after this long.
        environment: added to ours.

    Raises:
        ChildFailedError: it failed, or was killed.
    """
    arguments = [python, "-m", f"benchmarks.{module}", json.dumps(asdict(options))]
    with subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **(environment or {})},
    ) as child:
        try:
            output, errors = child.communicate(timeout=lifetime_s)
        except BaseException as error:
            os.killpg(child.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise ChildFailedError(f"{module} did not end within {lifetime_s:g} s") from None
            raise
    if child.returncode != 0:
        raise ChildFailedError(f"{module}: {errors.strip().splitlines()[-1] if errors.strip() else 'no output'}")
    return result(**json.loads(output))
