"""A selection of streams by name, and by patterns in which `*` stands for any characters."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from .errors import InvalidArgumentError
from .names import checked_stream_name

ANY: Final = "*"


def is_pattern(text: str) -> bool:
    """Return whether a text is a pattern; names of streams cannot contain a `*`."""
    return ANY in text


@dataclass(frozen=True, slots=True)
class Selection:
    """Streams by name, and all streams that match a pattern.

    Attributes:
        names: in the order given, without duplicates.
        patterns: as given.
    """

    names: tuple[str, ...]
    patterns: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Selection":
        """Return the selection of some names and patterns.

        Raises:
            InvalidNameError: a name is invalid.
            InvalidArgumentError: the selection is empty, or has duplicates.
        """
        given = list(texts)
        if not given:
            raise InvalidArgumentError("no stream is given")
        if len(set(given)) < len(given):
            raise InvalidArgumentError(f"a stream is given twice: {', '.join(given)[:200]}")
        names = tuple(checked_stream_name(text) for text in given if not is_pattern(text))
        return cls(names, tuple(text for text in given if is_pattern(text)))

    @property
    def prefixes(self) -> list[str]:
        """The literal prefix of each pattern."""
        return [pattern.partition(ANY)[0] for pattern in self.patterns]

    def matches(self, name: str) -> bool:
        """Return whether a name matches one of the patterns."""
        return any(
            re.fullmatch(".*".join(map(re.escape, pattern.split(ANY))), name) is not None for pattern in self.patterns
        )
