"""Durable stream storage for Python and Spark.

Names are loaded when they are first used: `import millrace` is quick, and loads neither the server nor PySpark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from . import blocking as blocking
    from . import client as client
    from . import spark_source as spark_source
    from . import testing as testing
    from . import tracing as tracing
    from .client.api import *  # noqa: F403  # what is public there is public here

_MODULES: Final = ("blocking", "client", "spark_source", "testing", "tracing")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    names = vars(import_module(f"{__name__}.client.api"))
    if name == "__all__":
        # Where pytest has rewritten the module, there are names in it that are none.
        public = (each for each in names if each.isidentifier() and not each.startswith("_"))
        return sorted([*_MODULES, *public])
    if name.startswith("_") or name not in names:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = names[name]
    return names[name]


def __dir__() -> list[str]:
    names: list[str] = __getattr__("__all__")
    return names
