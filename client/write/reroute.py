"""Moves the events of replaced segments to their successors.

When a stream is scaled under a writer, the replaced segments reject its blocks. Stored blocks are acked. The rest is
removed once *every* replaced segment has answered all its blocks, or a key would overtake itself. It goes into new
blocks of the successors, in the order written and not segment by segment, under event numbers that start with the
successor. Events written meanwhile follow.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Final

import numpy as np
import numpy.typing as npt

from millrace.client.errors import OutcomeUnknownError, SegmentNotFoundError, StreamNotFoundError
from millrace.client.streams import fetch_open_segments
from millrace.client.transport.channel import Channel
from millrace.client.transport.retry import Retry
from millrace.model.sequence_row import SequenceRow
from millrace.wire import messages as m

from .events import Block, Call, Events, joined, order_of
from .routing import Router, place_of
from .segment_writer import SegmentWriter, SenderState
from .targets import Targets

_ORDER: Final = attrgetter("order")
_FETCHES_BEFORE_RESUME: Final = 4
"""How often the stream of a rejecting segment is fetched before a block is sent to the segment again, as a test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Successors:
    """The segments to which a writer sends from now on.

    Attributes:
        last_numbers: the last event number of this writer in segments that are new to it.
    """

    router: Router
    last_numbers: dict[int, int]

    def replaced(self, segments: Iterable[SegmentWriter]) -> list[SegmentWriter]:
        """Return the current segments that are not among these."""
        return [each for each in segments if each.segment_id not in self.router.segment_ids]


class Rerouter:
    """Finds the successors of one writer's segments.

    Args:
        writer_id: empty for a writer without one.
        epoch: under which it was opened.
    """

    def __init__(self, channel: Channel, stream: str, *, stream_id: int, writer_id: str, epoch: int) -> None:
        self._channel = channel
        self._name = stream
        self._stream_id = stream_id
        self._writer_id = writer_id
        self._epoch = epoch

    @property
    def is_needed(self) -> bool:
        """Whether there are successors, even if no segment has rejected anything."""
        return False

    async def find(self, segments: Sequence[SegmentWriter], retry: Retry) -> Successors | None:
        """Fetch the new targets; None if they have to be fetched again, after a wait of `retry`.

        Cancelling is safe.

        A segment that rejects, but is open in the stream, was sealed by a decision that is not durable yet, and never
        will be if the server was killed first. So now and then it is resumed; the caller sends.

        Raises:
            StreamNotFoundError: the stream was deleted, even if another one has its name now.
            StreamSealedError: its segments have no successors.
            OutcomeUnknownError: they may have some, but `retry` ended first.
            ConnectionLostError, RequestTimeoutError: the server was unreachable until `retry` ended.
        """
        stream = await fetch_open_segments(self._channel, self._name, timeout_s=self._timeout_s(retry))
        if stream.stream_id != self._stream_id:
            raise StreamNotFoundError(f"{self._name} was deleted; the one of that name now is another stream")
        router = Router.of_stream(self._name, stream.segments)
        rejected = [each for each in segments if each.answered_state is SenderState.REJECTED]
        still_open = [each for each in rejected if each.segment_id in router.segment_ids]
        if still_open:
            await retry.wait(OutcomeUnknownError(f"{self._name}: its segments refuse, and nothing replaces them"))
            if retry.failures % _FETCHES_BEFORE_RESUME == 0:
                for segment in still_open:
                    segment.resume()
            return None
        known_ids = {each.segment_id for each in segments}
        try:
            last = await self._last_numbers(
                [each for each in router.segment_ids if each not in known_ids], timeout_s=self._timeout_s(retry)
            )
        except SegmentNotFoundError as error:  # replaced and truncated away meanwhile
            await retry.wait(OutcomeUnknownError(f"{self._name}: its segments are replaced all the time: {error}"))
            return None
        return Successors(router=router, last_numbers=last)

    async def fetch_row(self, retry: Retry) -> SequenceRow:
        """Return this writer's row on the stream: sent events that are not in it never will be stored.

        Raises:
            WriterFencedError: the id was opened again since.
        """
        request = m.GetWriter(self._writer_id, [], self._stream_id, self._epoch)
        reply = await self._channel.request(request, timeout_s=self._timeout_s(retry))
        return SequenceRow(reply.stored_through, reply.marks)

    def _timeout_s(self, retry: Retry) -> float:
        """Return how long a request may take: until the deadline, and no less than any other request."""
        return max(retry.left_s, self._channel.options.request_timeout_s)

    async def _last_numbers(self, segment_ids: list[int], *, timeout_s: float) -> dict[int, int]:
        """Return this writer's last numbers in segments that are new to it.

        Usually there are none. The previous writer with the id may have written to them, until it was fenced.
        """
        if not self._writer_id or not segment_ids:
            return {}
        reply = await self._channel.request(m.GetWriter(self._writer_id, segment_ids), timeout_s=timeout_s)
        return {state.segment_id: state.last_event_number for state in reply.states}


def left_over(segments: Iterable[SegmentWriter]) -> list[Events]:
    """Remove the unstored events of replaced segments, and return them in the order written.

    The rest of a call is joined: parts of it in several segments may go to one. So are single events between two calls,
    if they have sequences: those of several segments alternate.
    """
    singles: list[Events] = []
    parts: dict[Call, list[Events]] = {}
    for segment in segments:
        for block in segment.remove_all():
            events = block.unpack()
            if block.call is None:
                singles.append(events)
            else:
                parts.setdefault(block.call, []).append(events)
    calls = sorted(map(joined, parts.values()), key=_ORDER)
    if singles and singles[0].sequences is not None:
        singles = _between(joined(singles), calls)
    return sorted([*singles, *calls], key=_ORDER)


def _between(singles: Events, calls: Sequence[Events]) -> list[Events]:
    """Return single events that have sequences in pieces, of which each is before or after a call."""
    assert singles.sequences is not None
    count = len(singles.values)
    borders = [0, *(bisect_left(singles.sequences, call.order, key=order_of) for call in calls), count]
    pieces: list[Events] = []
    for start, end in pairwise(borders):
        if start < end:
            cost_bytes = 0 if pieces else singles.cost_bytes
            order = order_of(singles.sequences[start])
            pieces.append(singles.at(range(start, end))._replace(cost_bytes=cost_bytes, order=order))
    return pieces


def is_block_stored(block: Block, row: SequenceRow) -> bool:
    """Return whether a block that may have been sent is stored: always as a whole, or not at all."""
    events = block.unpack()
    assert isinstance(events.keys, list)
    assert events.sequences is not None
    first = events.sequences[0]
    return row.is_stored(first, place=place_of(events.keys[0], sequence=first))


def redistributed(events: Events, targets: Targets) -> list[tuple[SegmentWriter, Events]]:
    """Return unstored events of a replaced segment by their new segments, with their costs."""
    parts = split_events(events, _numbers_of(events, targets))
    return [(targets.segments[number], part.counted()) for number, part in parts]


def _numbers_of(events: Events, targets: Targets) -> list[int]:
    """Return the number of the new segment of each event."""
    router = targets.router
    assert isinstance(events.keys, list)
    if events.sequences is not None:
        keyed = zip(events.keys, events.sequences, strict=True)
        return [router.number_at(place_of(key, sequence=sequence)) for key, sequence in keyed]
    unkeyed = targets.segments.index(targets.current)
    return [unkeyed if key is None else router.number_of(key) for key in events.keys]


def split_events(events: Events, numbers: Sequence[int] | npt.NDArray[np.intp]) -> list[tuple[int, Events]]:
    """Return the events of each segment, by its number, in the order written; what they cost is left to the caller.

    Args:
        numbers: of the segment of each event.
    """
    all_numbers = np.asarray(numbers)
    found = np.unique(all_numbers).tolist()
    if len(found) == 1:
        return [(found[0], events)]
    return [(number, events.at(np.flatnonzero(all_numbers == number).tolist())) for number in found]
