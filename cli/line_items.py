"""What a line says of its event beside the value: a key, and in JSON a time and headers.

The forms are those that `millrace read` prints, so that what was read can be written again:

    --keys    key, tab, value; see `millrace.cli.key_text`
    --json    an object a line with `value` or `value_base64`, and maybe `key`, `timestamp_us` and `headers`
"""

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .key_text import unescape_key


class Item(NamedTuple):
    """What is written for a line.

    Attributes:
        timestamp_us: None for the clock.
    """

    value: bytes
    key: str | None = None
    timestamp_us: int | None = None
    headers: Mapping[str, bytes] | None = None


ItemOf = Callable[[bytes], Item]
"""Reads one line; raises ValueError (`InvalidArgumentError` is one) where it is not of the form."""


def keyed_item(line: bytes) -> Item:
    """Return what a line with a key, a tab and a value says."""
    key, tab, value = line.partition(b"\t")
    if not tab:
        raise ValueError("has no tab after its key; an event without a key begins with the tab")
    try:
        return Item(value, unescape_key(key.decode()))
    except UnicodeDecodeError:
        raise ValueError("has a key that is not UTF-8") from None


def json_item(line: bytes) -> Item:
    """Return what an object of `event_json` says; where the event was is left out."""
    try:
        content = json.loads(line)
    except ValueError as error:
        raise ValueError(f"is no JSON: {error}") from None
    if not isinstance(content, dict) or ("value" in content) == ("value_base64" in content):
        raise ValueError("is no JSON object with either value or value_base64")
    value = _bytes(content["value"] if "value" in content else {"base64": content["value_base64"]}, "value")
    key, timestamp_us, headers = (content.get(name) for name in ("key", "timestamp_us", "headers"))
    if not isinstance(key, str | None):
        raise ValueError(f"has a key that is no text: {key!r}")
    if isinstance(timestamp_us, bool) or not isinstance(timestamp_us, int | None):
        raise ValueError(f"has a timestamp_us that is no whole number: {timestamp_us!r}")
    if not isinstance(headers, dict | None):
        raise ValueError(f"has headers that are no object: {headers!r}")
    return Item(value, key, timestamp_us, {name: _bytes(each, name) for name, each in (headers or {}).items()})


def _bytes(content: Any, name: str) -> bytes:
    """Return what a text says, or an object with base 64."""
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, dict) and isinstance(coded := content.get("base64"), str):
        try:
            return base64.b64decode(coded, validate=True)
        except ValueError as error:
            raise ValueError(f"has a {name} that is not base 64: {error}") from None
    raise ValueError(f"has a {name} that is neither text nor base 64: {content!r}")
