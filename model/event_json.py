"""Events as JSON, the same for every part that shows them."""

import base64
from typing import Any

from .event import Event


def event_json(event: Event) -> dict[str, Any]:
    """Return an event as JSON knows it: a value that is not UTF-8 is given in base 64, as `value_base64`."""
    try:
        value = {"value": event.value.decode()}
    except UnicodeDecodeError:
        value = {"value_base64": base64.b64encode(event.value).decode()}
    return {
        **value,
        "key": event.key,
        "timestamp_us": event.timestamp_us,
        "segment": event.segment,
        "offset": event.offset,
        "index": event.index,
        "headers": {name: _header_json(header) for name, header in event.headers.items()},
    }


def _header_json(value: bytes) -> Any:
    """Return the value of a header: text, or an object with base 64 where it is not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
