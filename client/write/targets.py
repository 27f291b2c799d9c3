"""The targets of a writer: the open segments of its stream, with a segment writer for each."""

from collections.abc import Callable, Mapping

from millrace.model.compression import Compression
from millrace.model.limits import SEGMENTS_PER_STREAM_MAX

from .accumulator import Accumulator
from .routing import Router
from .segment_writer import SegmentWriter


class Targets:
    """The segment writers of one writer.

    Args:
        compression: of the blocks.

    Attributes:
        router: says which of `segments` an event belongs to.
        segments: in the order of their keys.
        current: takes the events without a key and a sequence until its next block is full.
        make_segment: makes the segment writer of a segment, given its id.
    """

    __slots__ = ("_compression", "_past_numbers", "current", "make_segment", "router", "segments")

    def __init__(self, compression: Compression) -> None:
        self._compression = compression
        # The last event numbers in segments that were replaced: of very many, the newest.
        self._past_numbers: dict[int, int] = {}
        self.router = Router((), ())
        self.segments: list[SegmentWriter] = []
        self.current: SegmentWriter
        self.make_segment: Callable[[int, Accumulator], SegmentWriter] = SegmentWriter

    def route(self, router: Router, numbers: Mapping[int, int], *, start: int) -> None:
        """Send to the segments of `router` from now on.

        Args:
            numbers: the last event numbers of the writer.
            start: selects the first `current` segment: writers that start together should not fill the same one.
        """
        known = {segment.segment_id: segment for segment in self.segments}
        self.router = router
        self.segments = [
            known.get(segment_id)
            or self.make_segment(
                segment_id,
                Accumulator(last_event_number=numbers.get(segment_id, 0), compression=self._compression),
            )
            for segment_id in router.segment_ids
        ]
        past = [each for each in numbers if numbers[each] and each not in router.segment_ids]
        self._past_numbers = {each: numbers[each] for each in past[-SEGMENTS_PER_STREAM_MAX:]}
        if not known or self.current not in self.segments:
            self.current = self.segments[start % len(self.segments)]

    def rotate(self, segment: SegmentWriter) -> None:
        """Direct events without a key to another segment, if it is this one's block that is full."""
        if segment is self.current:
            self.current = self.segments[(self.segments.index(segment) + 1) % len(self.segments)]

    @property
    def last_event_numbers(self) -> dict[int, int]:
        """The number of the last durable event in each segment; 0 if there is none."""
        return {**self._past_numbers, **{segment.segment_id: segment.last_acked_number for segment in self.segments}}

    @property
    def first_sequence(self) -> int | None:
        """The lowest sequence that is held, and so not known to be stored; None if there is none."""
        held = (segment.first_sequence for segment in self.segments)
        return min((each for each in held if each is not None), default=None)
