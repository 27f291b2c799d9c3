"""Checks recorded histories, each a file or a folder of files: `python -m tests.support.history PATH...`."""

import sys
import time
from pathlib import Path

from .checker import check_path


def main(paths: list[str]) -> int:
    """Print what is wrong with each history; return 1 if anything is, 2 if there is none."""
    if not paths:
        print(__doc__)
        return 2
    is_wrong = False
    for path in paths:
        started_s = time.monotonic()
        verdict = check_path(Path(path))
        is_wrong |= bool(verdict.violations)
        print(f"{path}: {len(verdict.violations)} violations in {time.monotonic() - started_s:.1f} s")
        print(verdict)
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
