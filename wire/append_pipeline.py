"""Appends that a server has accepted and not yet answered, and the order of their outcomes.

Outcomes are sent in the order of the request ids: acks are cumulative, and an error follows the acks of all appends
before it.

A failed append breaks the pipeline of its writer to its segment (appends without a writer share one): appends that the
client sent before it saw the error must not be applied, or an ordered pipeline would skip one. The server cannot know
what the client had sent by then, so it sends a PING after the error, and appends of that writer to that segment fail
until its PONG arrives. Every client answers PINGs in order with its other frames, so this needs no support by the
client (decision 0008). The state of one pipeline:

    WHOLE     an append fails         -> BROKEN     its error waits for the outcomes of those before it
    BROKEN    the error is sent       -> ASKED      followed by a PING: before the error, the client would answer
                                                    before it could know
    ASKED     the PONG of that PING,  -> WHOLE      everything sent before the client knew has arrived
              or of one after it
    BROKEN and ASKED                                every append fails with PIPELINE_BROKEN
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from . import messages as m
from .append_run import AppendRun
from .errors import ProtocolError
from .framing import encode, encode_append_ack

BROKEN_COUNT_MAX: Final = 4096
ENTRIES_PER_ACK_COUNT_MAX: Final = 16_384
"""An ack is a control frame, which has at most 1 MiB."""

_UNTOLD: Final = 0


class TakenAppends:
    """The appends of one run, which have one outcome.

    Attributes:
        settled: whether the outcome is known; then `error` is the failure, None if they are durable.
        offset: of the first byte of the first append, -1 if unknown.
        duplicate: whether all of them were stored before.
    """

    __slots__ = ("count", "duplicate", "error", "offset", "request_id", "segment_id", "settled", "writer_number")

    def __init__(self, run: AppendRun) -> None:
        # Not the run itself, which would keep its frames alive until the client is answered.
        self.segment_id = run.segment_id
        self.writer_number = run.writer_number
        self.request_id = run.request_id
        self.count = run.frame_count
        self.offset = -1
        self.duplicate = False
        self.settled = False
        self.error: Exception | None = None


class AppendPipeline:
    """The appends of one connection that await their outcome, and its broken pipelines.

    Args:
        refusal: makes the reply of an error.
    """

    __slots__ = ("_barrier", "_broken", "_refusal", "_taken", "count")

    def __init__(self, refusal: Callable[[Exception], m.ErrorReply]) -> None:
        self._refusal = refusal
        self._taken: deque[TakenAppends] = deque()
        # By segment and writer, the pipelines that are not WHOLE: id of the PING that was sent, `_UNTOLD` before that.
        self._broken: dict[tuple[int, int], int] = {}
        self._barrier = 0
        self.count = 0  # appends (not runs) that await their outcome

    def add(self, taken: Iterable[TakenAppends]) -> None:
        """Record appends in the order of their ids; one that has failed breaks its pipeline from here on.

        Raises:
            ProtocolError: the client continues in too many other pipelines and does not answer PINGs.
        """
        for appends in taken:
            self._taken.append(appends)
            self.count += appends.count
            if appends.error is not None:
                self._broken.setdefault((appends.segment_id, appends.writer_number), _UNTOLD)
        if len(self._broken) > BROKEN_COUNT_MAX:
            raise ProtocolError(f"appends to {len(self._broken)} segments failed, and no PONG came")

    def is_broken(self, segment_id: int, writer_number: int) -> bool:
        """Return whether an append failed, and the client may not have known when it sent the next one.

        Each writer has its own pipeline: a rejection of one writer means nothing for the events of another.
        """
        return bool(self._broken) and (segment_id, writer_number) in self._broken

    @property
    def has_outcomes(self) -> bool:
        """Whether the next outcome in order is known."""
        return bool(self._taken) and self._taken[0].settled

    def pong(self, barrier: int) -> None:
        """Record that the client has seen everything up to the PING with that id."""
        if self._broken:
            self._broken = {
                pipeline: asked for pipeline, asked in self._broken.items() if asked == _UNTOLD or asked > barrier
            }

    def take_frames(self) -> list[bytes]:
        """Return the frames of all known outcomes whose turn it is."""
        taken = self._taken
        frames: list[bytes] = []
        entries: list[tuple[int, int, int, int]] = []
        asks = False
        while taken and taken[0].settled:
            appends = taken.popleft()
            self.count -= appends.count
            if entries and (appends.error is not None or len(entries) == ENTRIES_PER_ACK_COUNT_MAX):
                frames.append(encode_append_ack(entries))
                entries = []
            if appends.error is None:
                entries.append((appends.request_id, appends.offset, appends.count, appends.duplicate))
                continue
            reply = self._refusal(appends.error)
            frames += [encode(reply, request_id=appends.request_id + number) for number in range(appends.count)]
            pipeline = (appends.segment_id, appends.writer_number)
            if self._broken.get(pipeline) == _UNTOLD:
                self._broken[pipeline] = self._barrier + 1
                asks = True
        if entries:
            frames.append(encode_append_ack(entries))
        if asks:
            self._barrier += 1
            frames.append(encode(m.Ping(), request_id=self._barrier))
        return frames
