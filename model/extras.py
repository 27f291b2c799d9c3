"""Optional packages, installed with extras of the distribution."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .errors import MissingExtraError

DISTRIBUTION: Final = "millrace-streams"
"""Name of the distribution; the import name is `millrace`."""


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Raise MissingExtraError if an import in the body fails because a third-party package is missing.

    Raises:
        MissingExtraError: instead of the ModuleNotFoundError.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "millrace"):
            raise
        raise MissingExtraError(package, f"{DISTRIBUTION}[{extra}]") from error
