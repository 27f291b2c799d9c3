"""The token file of the server."""

import logging
import os
import stat
from pathlib import Path

from millrace.model.token_file import parse_token
from millrace.server.errors import ConfigurationError

logger = logging.getLogger(__name__)


def read_token(path: Path) -> str:
    """Return the token in a file; log a warning if every user of the machine can read it. Blocks.

    Raises:
        ConfigurationError: the file cannot be read, or does not hold one token.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            token = parse_token(file.read())
    except OSError as error:
        problem = f"cannot read the token file: {error.strerror or error}"
        raise ConfigurationError(problem, subject=str(path)) from None
    except ValueError as error:
        raise ConfigurationError(f"cannot use the token file: {error}", subject=str(path)) from None
    if mode & stat.S_IROTH:
        logger.warning("token file is readable by all users, run chmod 600 path=%s mode=%04o", path, mode)
    return token
