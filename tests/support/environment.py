"""The environment of the suite: the same for every caller, whatever its terminal, locale, zone, proxies or settings."""

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from typing import Final

KEPT: Final = frozenset({
    "CI", "HOME", "JAVA_HOME", "LD_LIBRARY_PATH", "LOGNAME", "MILLRACE_CHAOS_SEED", "PATH", "PYTHONDONTWRITEBYTECODE",
    "PYTHONHASHSEED", "PYTHONPATH", "PYTHONPYCACHEPREFIX", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "TMPDIR", "USER",
    "VIRTUAL_ENV",
})  # fmt: skip
"""Where programs and folders are, who the caller is, and seeds."""
KEPT_PREFIXES: Final = ("COVERAGE_", "COV_", "HYPOTHESIS_", "KILL_MATRIX_", "PIP_", "PYTEST_", "TORTURE_")
"""Of the tools of the suite, and of parts of it."""
SET: Final = {
    # Every JVM of the suite lives for seconds or a few minutes, in this process or in one that a test starts: the first
    # compiler and the simplest collector cost the least. A query that takes 36 s of processor with both takes 27 s so.
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "LANG": "C.UTF-8",
    "TERM": "xterm-256color",
    "TZ": "UTC",
}


def suite_environment(caller: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the suite for one of its caller: without `HOME`, if the caller has none."""
    kept = {name: value for name, value in caller.items() if name in KEPT or name.startswith(KEPT_PREFIXES)}
    return {**kept, **SET}


def settle_environment() -> None:
    """Give this process, and all that it starts, the environment of the suite."""
    environment = suite_environment(os.environ)
    if not environment.get("HOME"):
        environment["HOME"] = tempfile.mkdtemp(prefix="millrace-home-")
        atexit.register(shutil.rmtree, environment["HOME"], ignore_errors=True)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
