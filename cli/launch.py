"""The installed program `millrace`: reports missing packages if the command line is not installed."""

import gc
import os
import signal
import sys

from millrace.model.errors import MissingExtraError
from millrace.model.extras import needs


def launch() -> int:
    """Run a command and return its exit code; 1 if its packages are not installed."""
    # Modules are kept for good: collecting garbage while they load, or scanning them later, takes a tenth of a short
    # command.
    gc.disable()
    if os.getpid() == 1:
        # As the first process of a container, the program would not be ended by a signal that it does not handle.
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    try:
        with needs("cli"):
            from .main import main
    except MissingExtraError as error:
        sys.stderr.write(f"error: the command line needs more: {error}\n")
        return 1
    gc.freeze()
    gc.enable()
    return main()
