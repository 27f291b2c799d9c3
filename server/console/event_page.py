"""A page of events of a stream for display, bounded in number, size, and search time."""

import asyncio
import codecs
import json
from typing import Any, Final

from millrace.client.client import Client
from millrace.client.read.reader import Reader, ReaderOptions
from millrace.model.cut import TAIL, CutChoice
from millrace.model.event import Event
from millrace.model.event_json import event_json
from millrace.wire.limits import KIB, MIB

from .options import WINDOW_BYTES_MIN

EVENTS_COUNT_MAX: Final = 500
VALUE_SIZE_BYTES_MAX: Final = 4 * KIB
"""Of a value that is longer, so much is shown."""
PAGE_SIZE_BYTES_MAX: Final = 2 * MIB
"""No event is added to a page whose JSON has reached this size."""
SEARCH_S: Final = 3.0
"""The page is cut after this time: events of one key may be sparse."""


async def event_page(
    client: Client, stream: str, *, start: CutChoice, key: str | None, count_max: int
) -> dict[str, Any]:
    """Return the next events of a stream from a place on, up to its current tail.

    `next` is the cut after them; `at_end` is whether the tail was reached. Cancelling is safe.

    Raises:
        MillraceError: the events cannot be read.
    """
    events: list[dict[str, Any]] = []
    options = ReaderOptions(window_bytes=WINDOW_BYTES_MIN)
    async with client.reader(stream, start=start, end=TAIL, key=key, options=options) as reader:
        try:
            async with asyncio.timeout(SEARCH_S) as limit:
                at_end = await _collect(reader, events, count_max=count_max)
        except TimeoutError:
            if not limit.expired():
                raise
            at_end = False
        return {"stream": stream, "events": events, "next": str(reader.position()), "at_end": at_end}


async def _collect(reader: Reader, events: list[dict[str, Any]], *, count_max: int) -> bool:
    """Add events to a page; return whether the end was reached."""
    size_bytes = 0
    while len(events) < count_max and size_bytes < PAGE_SIZE_BYTES_MAX:
        event = await anext(reader, None)
        if event is None:
            return True
        row = shown(event)
        events.append(row)
        size_bytes += len(json.dumps(row))
    return False


def shown(event: Event) -> dict[str, Any]:
    """Return an event as `millrace read --json` prints it, with the size of its value, which may be shortened.

    Text is shortened between two characters; a value that is not UTF-8 text is base64, as everywhere.
    """
    size_bytes = len(event.value)
    value = event.value[:VALUE_SIZE_BYTES_MAX]
    if size_bytes > len(value):
        try:
            value = codecs.getincrementaldecoder("utf-8")().decode(value).encode()
        except UnicodeDecodeError:
            pass
    return {**event_json(event._replace(value=value)), "value_size_bytes": size_bytes}
