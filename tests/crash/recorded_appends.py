"""Appends of raw connections, as the history of their clients records them.

An event is known by its name, and its bytes by the event: so whoever reads a segment knows what he has.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.support.history import Recorder
from tests.support.protocol import Outcome, Peer, Stored

NOT_STORED = (ErrorCode.NO_SPACE, ErrorCode.THROTTLED, ErrorCode.PIPELINE_BROKEN)
"""Certainly not stored; may be sent again."""
ONLY = "0"
"""The segment of a stream that is one segment with a name of its own."""

Places = dict[str, tuple[str, int, int]]
"""Where events are: segment, offset and index of each."""


def payload(event: str, *, seed: int) -> bytes:
    """Return the content of an event: it names itself, and ends in noise that only it has."""
    noise = random.Random(f"{seed}/{event}")
    return b"<%s:%s>" % (event.encode(), noise.randbytes(noise.choice((0, 8, 100, 700))).hex().encode())


def events_of(content: bytes, *, seed: int, start: int = 0) -> list[tuple[int, str]]:
    """Return the events in the bytes of a segment with their offsets; what is none is named by its bytes."""
    found: list[tuple[int, str]] = []
    position = 0
    while position < len(content):
        end = content.find(b">", position) + 1 or len(content)
        item = content[position:end]
        event = item[1:].rpartition(b":")[0].decode("latin-1")
        found.append((start + position, event if item == payload(event, seed=seed) else f"no event: {item[:60]!r}"))
        position = end
    return found


@dataclass(slots=True)
class RecordedAppends:
    """What several clients asked and were told, on one server after the other.

    Attributes:
        pending: the appends without an answer, by their operation: the event, and the segment that it was sent to.
    """

    seed: int
    recorder: Recorder = field(default_factory=Recorder)
    pending: dict[str, tuple[str, str]] = field(default_factory=dict)

    async def send(
        self,
        peer: Peer,
        segment_id: int,
        event: str,
        *,
        client: str,
        stream: str,
        segment: str = ONLY,
        told: Mapping[str, Any],
        **fields: Any,
    ) -> tuple[int, str]:
        """Send an append; return its request id with its operation. `told` is recorded, `fields` are sent."""
        operation = self.recorder.call(client, "write", stream=stream, events=[event], **told)
        self.pending[operation] = event, segment
        (request_id,) = await peer.append(segment_id, payload(event, seed=self.seed), **fields)
        return request_id, operation

    async def settled(self, peer: Peer, sent: Sequence[tuple[int, str]]) -> list[Outcome]:
        """Return the outcomes of appends; record those that came, also if the connection is lost before the others."""
        try:
            return await peer.settled([request_id for request_id, _ in sent])
        finally:
            for request_id, operation in sent:
                outcome = peer.outcomes.get(request_id)
                if isinstance(outcome, Stored):
                    _, segment = self.pending.pop(operation)
                    places = [[segment, outcome.offset, 0]] if outcome.offset >= 0 else []
                    self.recorder.answer(operation, "stored", places=places)
                elif outcome in NOT_STORED:
                    del self.pending[operation]
                    self.recorder.answer(operation, "refused")

    def learn(self, places: Places) -> None:
        """Answer what is pending by what was read while nothing was under way: it is there, or never will be."""
        for operation, (event, _) in self.pending.items():
            if event in places:
                self.recorder.answer(operation, "stored", places=[places[event]])
            else:
                self.recorder.answer(operation, "refused")
        self.pending.clear()


@dataclass(slots=True)
class Look:
    """What is there when nobody writes, added to what clients were told before."""

    recorder: Recorder
    seed: int
    places: Places = field(default_factory=dict)
    size: int = 0

    async def read_segment(self, peer: Peer, stream: str, segment_id: int) -> m.SegmentInfo:
        """Read a stream of one segment."""
        operation = self.recorder.call("look", "read", stream=stream)
        info = await peer.info(segment_id)
        await self._take(peer, operation, segment_id, ONLY, start=info.start_offset)
        end = {ONLY: [info.length, 0]}
        self.recorder.answer(operation, "read", to=end, tail=end)
        return info

    async def read_stream(self, peer: Peer, name: str) -> None:
        """Read all segments of a stream."""
        operation = self.recorder.call("look", "read", stream=name)
        stream = await peer.ask(m.GetStream(name), m.StreamInfo)
        for segment in sorted(stream.segments, key=lambda segment: (segment.epoch, segment.low)):
            await self._take(peer, operation, segment.segment_id, str(segment.segment_id), start=segment.start_offset)
        end = {str(each.segment_id): [each.length, 0] for each in stream.segments if not each.sealed_epoch}
        self.recorder.answer(operation, "read", to=end, tail=end)
        after = {
            str(each.segment_id): [
                str(other.segment_id) for other in stream.segments if each.epoch and other.sealed_epoch == each.epoch
            ]
            for each in stream.segments
        }
        self.recorder.answer(self.recorder.call("look", "history", stream=name), "history", after=after)

    async def _take(self, peer: Peer, operation: str, segment_id: int, segment: str, *, start: int) -> None:
        content = await peer.read_all(segment_id, start=start)
        self.size += len(content)
        took = [(segment, offset, 0, event) for offset, event in events_of(content, seed=self.seed, start=start)]
        self.places |= {event: (segment, offset, 0) for _, offset, _, event in took}
        if took:
            self.recorder.took(operation, took)
