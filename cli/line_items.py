"""Input lines with more than a value: with a key, and in JSON with a time and headers.

The forms are those that `millrace read` prints, so that its output can be written again:

    --keys    key, tab, value; see `millrace.cli.key_text`
    --json    an object a line with `value` or `value_base64`, and maybe `key`, `timestamp_us` and `headers`
"""

import base64
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from .key_text import unescape_key
from .line_json import parse_json, utf8

_INT64_MAX: Final = (1 << 63) - 1
_SHOWN_CHARACTERS_MAX: Final = 80


class Item(NamedTuple):
    """The event of a line.

    Attributes:
        timestamp_us: None for the current time.
    """

    value: bytes
    key: str | None = None
    timestamp_us: int | None = None
    headers: Mapping[str, bytes] | None = None


ItemOf = Callable[[bytes], Item]
"""Parses one line; raises ValueError (`InvalidArgumentError` is one) if it has another form."""


def keyed_item(line: bytes) -> Item:
    """Parse a line with a key, a tab and a value."""
    key, tab, value = line.partition(b"\t")
    if not tab:
        raise ValueError("has no tab after its key; an event without a key begins with the tab")
    try:
        return Item(value, unescape_key(key.decode()))
    except UnicodeDecodeError:
        raise ValueError("has a key that is not UTF-8") from None


def json_item(line: bytes) -> Item:
    """Parse an object of `event_json`; the position of the event is ignored."""
    content = parse_json(line)
    if not isinstance(content, dict) or ("value" in content) == ("value_base64" in content):
        raise ValueError("is not a JSON object with either value or value_base64")
    value = _bytes(content["value"] if "value" in content else {"base64": content["value_base64"]}, "value")
    key, timestamp_us, headers = (content.get(name) for name in ("key", "timestamp_us", "headers"))
    if not isinstance(key, str | None):
        raise ValueError(f"has a key that is not text: {_shown(key)}")
    if key is not None:
        utf8(key, "key")
    if isinstance(timestamp_us, bool) or not isinstance(timestamp_us, int | None):
        raise ValueError(f"has a timestamp_us that is not an integer of 64 bits: {_shown(timestamp_us)}")
    if timestamp_us is not None and not -_INT64_MAX - 1 <= timestamp_us <= _INT64_MAX:
        raise ValueError(f"has a timestamp_us that is not an integer of 64 bits: {_shown(timestamp_us)}")
    if not isinstance(headers, dict | None):
        raise ValueError(f"has headers that are not an object: {_shown(headers)}")
    for name in headers or {}:
        utf8(name, "header")
    return Item(value, key, timestamp_us, {name: _bytes(each, name) for name, each in (headers or {}).items()})


def _bytes(content: Any, name: str) -> bytes:
    """Return the bytes of a text, or of an object with base 64."""
    if isinstance(content, str):
        return utf8(content, name)
    if isinstance(content, dict) and isinstance(coded := content.get("base64"), str):
        try:
            return base64.b64decode(coded, validate=True)
        except ValueError as error:
            raise ValueError(f"has a {name} that is not base 64: {error}") from None
    raise ValueError(f"has a {name} that is neither text nor base 64: {_shown(content)}")


def _shown(content: Any) -> str:
    text = repr(content)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}..."
