"""Packages that only some need: imported when they are first used, by an import that names what to install."""

from importlib import import_module
from types import ModuleType

from .errors import ExtraMissingError


def imported(package: str, *, extra: str) -> ModuleType:
    """Return a package, or a module of one.

    Raises:
        ExtraMissingError: it is not installed; names the extra of Millrace that brings it.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        root = package.partition(".")[0]
        if error.name != root:
            raise  # the package is there, and lacks something itself
        raise ExtraMissingError(root, extra) from error
