r"""Server-sent events: the part of the format `text/event-stream` of the HTML standard that feeds use.

A message consists of some lines of ASCII and an empty line:

    id: shop/orders@1:4096.3      the place from which a reconnecting client continues
    event: truncated              its kind; `message` if the line is missing
    retry: 2000                   from now on, the delay before a client reconnects, in milliseconds
    data: {"value": "..."}        its content, as JSON: without it, no message is dispatched, but the rest counts

JSON escapes line breaks, control characters and non-ASCII characters, so any content is one line of `data`, also for
clients that split lines in other places than the standard.
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
    """Encode a message.

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
