"""Representations of values and handles: a short `repr`, and a `dir` of public names.

A `repr` is read in logs, tracebacks and shells. It never contains a token, and never a whole value of a user, which may
be megabytes; and it never raises, whatever the state of its object.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, ClassVar, Final, cast

BYTES_MAX: Final = 40
"""Bytes, and characters of text, that are shown."""
ITEMS_MAX: Final = 5
"""Items of a collection that are shown."""


def short(value: object) -> str:
    """Return the `repr` of a value, shortened, with its length."""
    if isinstance(value, bytes | str) and len(value) > BYTES_MAX:
        return f"{value[:BYTES_MAX]!r}... ({len(value):,} {'bytes' if isinstance(value, bytes) else 'characters'})"
    if isinstance(value, Mapping):
        return f"{{{_items((f'{short(key)}: {short(each)}' for key, each in value.items()), len(value))}}}"
    if type(value) is tuple:
        comma = "," if len(value) == 1 else ""
        return f"({_items(map(short, value), len(value))}{comma})"
    if isinstance(value, list):
        return f"[{_items(map(short, value), len(value))}]"
    return repr(value)


def _items(texts: Iterable[str], count: int) -> str:
    shown = [text for text, _ in zip(texts, range(ITEMS_MAX), strict=False)]
    return ", ".join(shown if count <= ITEMS_MAX else [*shown, f"... {count - ITEMS_MAX:,} more"])


class PublicNames:
    """A class that shows its public names in `dir`, and in shell completion."""

    __slots__ = ()

    _unlisted: ClassVar[frozenset[str]] = frozenset()
    """Public for other modules of Millrace only."""

    def __dir__(self) -> list[str]:
        """Return the public names."""
        return sorted(name for name in super().__dir__() if not name.startswith("_") and name not in self._unlisted)


class ShortRepr(PublicNames):
    """A dataclass, made with `repr=False`, whose fields may be large."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the call that would make it, with long values cut."""
        shown = (f"{each.name}={short(getattr(self, each.name))}" for each in fields(cast("Any", self)) if each.repr)
        return f"{type(self).__name__}({', '.join(shown)})"


class Handle(PublicNames, ABC):
    """An object that users hold: a client, a reader, a writer, a transaction."""

    __slots__ = ()

    @abstractmethod
    def _facts(self) -> Iterator[str]:
        """Yield its subject, its place, and its state."""

    def __repr__(self) -> str:
        """Return its subject and its state."""
        try:
            facts = list(self._facts())
        except AttributeError:
            facts = ["not made"]  # an error has ended its `__init__`
        return f"<millrace.{type(self).__name__} {', '.join(facts)}>"
