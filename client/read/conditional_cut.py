"""Finds the cut at which a condition begins to hold: in each segment before the first event that meets it.

A reader reads each segment up to that event, and stops there. If no event meets it, the reader continues with the
successors, as usual: once all segments that were replaced together are read to their ends. If a segment is merged with
a stopped one, the reader never continues, and its place is its end: their successor is after the cut. The places are
those of a reader at each moment, so they are a cut.

It is the furthest cut before which no event meets the condition. So it does not depend on who searched, when, how far
one segment was read before another, or how the stream was scaled since.
"""

from collections.abc import Callable

from millrace.model.cut import StreamCut
from millrace.model.event import Event
from millrace.model.slice import Slice

from .reader import OpenReader, ReaderOptions


async def cut_before_first(open_reader: OpenReader, part: Slice, holds: Callable[[Event], bool]) -> StreamCut:
    """Return the furthest cut of a slice before which no event meets a condition; waits for new events.

    Cancelling is safe. Errors of the condition are raised here.
    """
    async with await open_reader(part, ReaderOptions()) as reader:
        async for event in reader:
            if holds(event):
                reader.stop_before(event)
        return reader.position()
