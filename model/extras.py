"""What is optional: packages that are installed with an extra of the distribution."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .errors import MissingExtraError

DISTRIBUTION: Final = "millrace-streams"
"""What is installed; the import name is `millrace`."""


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Say which extra is missing, where an import in the body fails for want of a package that is not ours.

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
