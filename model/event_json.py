"""Events as JSON, the same for every part that shows them."""

import base64
from collections.abc import Mapping
from typing import Any

from .event import Event


def event_json(event: Event) -> dict[str, Any]:
    """Return an event as JSON values."""
    return {
        **value_json(event.value),
        "key": event.key,
        "timestamp_us": event.timestamp_us,
        "segment": event.segment,
        "offset": event.offset,
        "index": event.index,
        "headers": headers_json(event.headers),
    }


def value_json(value: bytes) -> dict[str, str]:
    """Return a value as `value`; if it is not UTF-8, in base 64 as `value_base64`."""
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}


def headers_json(headers: Mapping[str, bytes]) -> dict[str, Any]:
    """Return headers: each value is text, or an object with base 64 if it is not UTF-8."""
    return {name: _header_json(header) for name, header in headers.items()}


def _header_json(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
