"""The program `millrace` as it is installed: it says what is missing where the command line is not."""

import gc
import sys

from millrace.model.errors import MissingExtraError
from millrace.model.extras import needs


def launch() -> int:
    """Run a command and return its exit code; 1 where its packages are not installed."""
    # Modules are kept: to look for garbage while they are loaded, or in them later, takes a tenth of a short command.
    gc.disable()
    try:
        with needs("cli"):
            from .main import main
    except MissingExtraError as error:
        sys.stderr.write(f"error: the command line needs more: {error}\n")
        return 1
    gc.freeze()
    gc.enable()
    return main()
