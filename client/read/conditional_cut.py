"""Finding the cut at which a condition begins to hold: before the first event of each segment that meets it.

A reader reads each segment up to that event, and leaves the segment there. Where none meets it the reader continues in
what replaced the segment, as readers do: once all that were replaced together are read to their ends. If a segment is
merged with one that was left, it is never that far, and its end is its place: what replaced both is after the cut. So
the places are those of a reader at each moment, and they are a cut.

It is the furthest cut before which no event meets the condition. So it does not depend on who searched, when, how far
one segment was read before another, or how the stream was scaled since.
"""

from collections.abc import Callable

from millrace.model.cut import StreamCut
from millrace.model.event import Event
from millrace.model.slice import Slice

from .reader import OpenReader, ReaderOptions


async def cut_before_first(open_reader: OpenReader, part: Slice, holds: Callable[[Event], bool]) -> StreamCut:
    """Return the furthest cut of a slice before which a condition holds for no event; it waits where none has come.

    Cancelling is safe. What the condition raises is raised here.
    """
    async with await open_reader(part, ReaderOptions()) as reader:
        async for event in reader:
            if holds(event):
                reader.stop_before(event)
        return reader.position()
