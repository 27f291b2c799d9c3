"""Opens a writer on a stream that may be scaled meanwhile."""

from contextlib import suppress
from dataclasses import dataclass
from secrets import token_bytes
from typing import Final

from millrace.client.errors import SegmentNotFoundError
from millrace.client.transport.channel import Channel
from millrace.client.transport.retry import Retry
from millrace.model.cut import StreamCut
from millrace.model.limits import SEGMENTS_PER_STREAM_MAX
from millrace.model.sequence_row import SequenceRow
from millrace.wire import messages as m
from millrace.wire.messages.writer import NO_NONCE

from .exclusive import open_exclusive
from .routing import Router
from .sequences import SequenceTracker
from .writer_info import stream_changed

NONCE_SIZE_BYTES: Final = len(NO_NONCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """An opened writer, and its stored events.

    Attributes:
        known: whether the server knew the writer id, and what it had stored.
        last_event_numbers: by segment.
    """

    number: int
    epoch: int
    known: bool
    stream_id: int
    router: Router
    last_event_numbers: dict[int, int]
    sequences: SequenceTracker


async def open_writer(
    channel: Channel,
    stream_name: str,
    writer_id: str | None,
    *,
    start_over: bool,
    is_exclusive: bool = False,
    expected: StreamCut | None = None,
    retry: Retry,
) -> Opening:
    """Open a writer under a new epoch. Raises like `Writer.open`."""
    # Sent again after a lost connection it is the same opening.
    nonce = token_bytes(NONCE_SIZE_BYTES) if writer_id else NO_NONCE
    while True:
        # Only a named writer can have events in segments that were replaced.
        stream = await channel.request(m.GetStream(stream_name, 0 if writer_id else m.NOT_REPLACED))
        router = Router.of_stream(stream_name, stream.segments)
        request = m.OpenWriter(
            writer_id or "",
            _asked(stream, router),
            int(start_over),
            stream.stream_id,
            nonce,
            exclusive=int(is_exclusive),
            expected=[] if expected is None else [m.SavedPosition(each, *place) for each, place in expected.positions],
        )
        try:
            is_lasting = writer_id is not None or not is_exclusive
            opened = await (channel.request(request) if is_lasting else open_exclusive(channel, request))
            first = opened
            break
        except SegmentNotFoundError as error:
            # Truncated away, or the stream deleted, between the two requests.
            await retry.wait(stream_changed("the writer was not opened", stream_name, retry, error))
    # The previous writer with the id may have found successors just before it was fenced. Now it writes no more.
    while opened.known:
        stream = await channel.request(m.GetStream(stream_name))
        router = Router.of_stream(stream_name, stream.segments)
        asked = _asked(stream, router)
        if {state.segment_id for state in opened.states}.issuperset(asked):
            break
        with suppress(SegmentNotFoundError):
            opened = await channel.request(m.GetWriter(writer_id or "", asked))
        # At once: the two answers agree only if the stream is not scaled between them.
        retry.next_wait_s(stream_changed("the writer was not opened", stream_name, retry))
    row = SequenceRow(first.stored_through, first.marks)
    return Opening(
        number=first.writer_number,
        epoch=first.writer_epoch,
        known=bool(first.known),
        stream_id=stream.stream_id,
        router=router,
        last_event_numbers={state.segment_id: state.last_event_number for state in opened.states},
        sequences=SequenceTracker(row, is_plain=bool(first.is_plain), is_named=writer_id is not None),
    )


def _asked(stream: m.StreamInfo, router: Router) -> list[int]:
    """Return the segments whose event numbers are fetched: all, or the open ones if all are too many."""
    everything = [segment.segment_id for segment in stream.segments]
    is_whole = not stream.next_epoch and len(everything) <= SEGMENTS_PER_STREAM_MAX
    return everything if is_whole else list(router.segment_ids)
