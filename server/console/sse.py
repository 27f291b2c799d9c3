r"""Server-sent events: the format `text/event-stream` of the HTML standard, as far as it is sent.

A message is some lines of ASCII and an empty one:

    id: shop/orders@1:4096.3      from here on, where a client that comes back wants to continue
    event: truncated              its kind; `message` where the line is missing
    retry: 2000                   from here on, after how many milliseconds a client comes back
    data: {"value": "..."}        its content, as JSON: without it, no message is dispatched, but the rest counts

JSON escapes line breaks, control characters and what is not ASCII, so whatever is sent is one line of `data`, for
clients that split lines in other places than the standard says, too.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

CONTENT_TYPE: Final = "text/event-stream"
KEEP_ALIVE: Final = b":\n\n"
"""A comment, which clients ignore."""


def encode_message(
    content: Mapping[str, Any] | None = None,
    *,
    last_id: str = "",
    event: str = "",
    retry_ms: int | None = None,
) -> bytes:
    """Return a message.

    Args:
        content: its data, None for none.
        last_id, event: one line of ASCII each, without NUL; empty for none.
    """
    lines = []
    if last_id:
        lines.append(f"id: {last_id}\n")
    if event:
        lines.append(f"event: {event}\n")
    if retry_ms is not None:
        lines.append(f"retry: {retry_ms}\n")
    if content is not None:
        lines.append(f"data: {json.dumps(content)}\n")
    return "".join([*lines, "\n"]).encode("ascii")
