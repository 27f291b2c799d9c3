r"""Routing keys in lines: printed by `millrace read --keys` before a tab, and read back by `millrace write --keys`.

A key may contain any character. Characters that would end the key or the line are escaped: a tab is `\t`, the ends of
lines are `\n` and `\r`, and the backslash itself is `\\`. An event without a key has nothing before the tab; the empty
key is `\e`.
"""

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

EMPTY_KEY: Final = r"\e"
_ESCAPES: Final = {"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"}
_MEANINGS: Final = {escape: text for text, escape in _ESCAPES.items()} | {EMPTY_KEY: ""}
_ESCAPED: Final = re.compile(r"\\(?:.|$)", re.DOTALL)


def escape_keys(keys: "pa.StringArray") -> "pa.StringArray":
    """Escape keys for printing. Keys without special characters are not copied."""
    import pyarrow.compute as pc

    if pc.any(pc.match_substring_regex(keys, r"[\\\t\n\r]")).as_py():
        for text, escape in _ESCAPES.items():
            keys = pc.replace_substring(keys, text, escape)
    if pc.min(pc.binary_length(keys)).as_py() == 0:
        keys = pc.if_else(pc.equal(keys, ""), EMPTY_KEY, keys)
    return keys


def unescape_key(text: str) -> str | None:
    """Decode a printed key; None for an event without a key.

    Raises:
        ValueError: a backslash before a character that it does not escape.
    """
    if not text:
        return None
    return _ESCAPED.sub(lambda escape: _meaning(escape[0]), text) if "\\" in text else text


def _meaning(escape: str) -> str:
    if escape not in _MEANINGS:
        known = ", ".join(_MEANINGS)
        raise ValueError(f"{escape!r} is not a valid escape in a key: use {known}")
    return _MEANINGS[escape]
