"""The program `millrace` as it is installed: it says what is missing where the command line is not."""

import gc
import os
import signal
import sys

from millrace.model.errors import MissingExtraError
from millrace.model.extras import needs


def launch() -> int:
    """Run a command and return its exit code; 1 where its packages are not installed."""
    # Modules are kept: to look for garbage while they are loaded, or in them later, takes a tenth of a short command.
    gc.disable()
    if os.getpid() == 1:
        # In a container of its own: the first process is not ended by a signal that it does not handle.
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
