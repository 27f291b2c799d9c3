"""The name of the Spark application that runs a process of the driver.

Spark passes it to no Python source, nor the name of the query. But the JVM of the driver, which starts these processes,
was itself started with the name: `SparkSession.builder.appName(...)` and `spark-submit --name` put it into its command.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

_PROCESSES: Final = Path("/proc")
_PARENTS_COUNT_MAX: Final = 5
"""From a worker over the daemon that forked it to the JVM are two."""
_SUBMIT: Final = "org.apache.spark.deploy.SparkSubmit"
_SETTING: Final = "spark.app.name="
_SIZE_MAX: Final = 60


def application_name(processes: Path = _PROCESSES, process: str = "self") -> str | None:
    """Return the name, stripped; None if it is unknown, as on systems without `/proc`."""
    try:
        for _ in range(_PARENTS_COUNT_MAX):
            command = (processes / process / "cmdline").read_text(encoding="utf-8", errors="replace")
            if name := name_in(command.split("\0")):
                return re.sub(r"[^\w.-]+", "-", name).strip("-")[:_SIZE_MAX] or None
            status = (processes / process / "status").read_text(encoding="utf-8", errors="replace")
            parent = re.search(r"^PPid:\s*(\d+)", status, re.MULTILINE)
            if parent is None:
                return None
            process = parent[1]
    except OSError:
        return None
    return None


def name_in(command: Sequence[str]) -> str | None:
    """Return the name of the application in the command line of a JVM; None if it has none."""
    if _SUBMIT not in command:
        return None
    arguments = command[command.index(_SUBMIT) + 1 :]
    for flag, value in pairwise(arguments):
        if flag == "--name":
            return value
        if flag == "--conf" and value.startswith(_SETTING):
            return value.removeprefix(_SETTING)
    return None
