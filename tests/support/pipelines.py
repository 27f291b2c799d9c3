"""Transactions whose frames leave in one piece, none of them waiting for the answer to the one before."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from millrace.wire import messages as m
from millrace.wire.framing import encode
from tests.support.protocol import Outcome, Peer, RefusedError
from tests.support.transactions import reserve

WHOLE: Final = ["TransactionReply", "Done", "TransactionReply"]
"""What is told for the frames of a whole transaction."""


class Told(NamedTuple):
    """What came back for the frames of a pipeline."""

    replies: list[m.Message | RefusedError]
    outcomes: list[Outcome]

    def names(self) -> list[str]:
        """Return the types of the replies, or how they were refused."""
        return [each.code.name if isinstance(each, RefusedError) else type(each).__name__ for each in self.replies]


@dataclass
class Pipeline:
    """Frames to be sent together.

    Attributes:
        writer: under which it appends.
        ids: reserved and not yet used.
        wants_replies: to what begins transactions and adds parts from now on.
    """

    peer: Peer
    writer: m.WriterOpened
    ids: list[int]
    wants_replies: bool = True
    _frames: list[bytes] = field(default_factory=list)
    _requests: list[int] = field(default_factory=list)
    _appends: list[int] = field(default_factory=list)

    @classmethod
    async def open(cls, peer: Peer, *, ids_count: int = 1000) -> "Pipeline":
        return cls(peer, await peer.open_writer(""), await reserve(peer, ids_count))

    def take_id(self) -> int:
        return self.ids.pop(0)

    def ask(self, message: m.Message) -> None:
        request_id = self.peer.next_id()
        if self.wants_replies or not isinstance(message, m.BeginTransaction | m.AddParts):
            self._frames.append(encode(message, request_id=request_id))
            self._requests.append(request_id)
        else:
            self._frames.append(encode(message, request_id=request_id, flags=m.RequestFlag.UNANSWERED))

    def begin(self, *streams: str | m.RoutedStream, number: int = 0, name: str = "", lease_ms: int = 30_000) -> int:
        """Begin a transaction under a fresh number, if none is given; return it."""
        number = number or self.take_id()
        routed = [m.RoutedStream(each, 0, 0) if isinstance(each, str) else each for each in streams]
        self.ask(m.BeginTransaction(number=number, name=name, lease_ms=lease_ms, streams=routed))
        return number

    def begin_with_parts(
        self, stream: str | m.RoutedStream, routed_ids: Sequence[int], *, number: int = 0, name: str = ""
    ) -> tuple[int, list[int]]:
        """Begin a transaction with a part for each of these segments; return its number, and their ids."""
        number = number or self.take_id()
        parts = [m.NewPart(self.take_id(), routed_id) for routed_id in routed_ids]
        routed = m.RoutedStream(stream, 0, 0) if isinstance(stream, str) else stream
        self.ask(m.BeginTransaction(number=number, name=name, lease_ms=30_000, streams=[routed], parts=parts))
        return number, [part.segment_id for part in parts]

    def parts(self, number: int, routed_ids: Sequence[int], *, branch: int = 0) -> list[int]:
        """Add a part for each of these segments; return their ids."""
        new = [m.NewPart(self.take_id(), routed_id) for routed_id in routed_ids]
        self.ask(m.AddParts(number=number, branch=branch, parts=new))
        return [part.segment_id for part in new]

    def append(self, part_id: int, *payloads: bytes, event_number: int = 1) -> None:
        request_ids, frames = self.peer.packed(
            part_id,
            *payloads,
            event_number=event_number,
            writer_number=self.writer.writer_number,
            writer_epoch=self.writer.writer_epoch,
        )
        self._frames.append(frames)
        self._appends += request_ids

    def commit(self, number: int, *counts: tuple[int, int], drops_others: bool = False) -> None:
        branches = [m.BranchCount(*each) for each in counts]
        self.ask(
            m.CommitTransaction(number=number, name="", branches=branches, drops_others=int(drops_others), cursors=[])
        )

    def prepare(self, number: int, *counts: tuple[int, int], drops_others: bool = False) -> None:
        branches = [m.BranchCount(*each) for each in counts]
        self.ask(m.PrepareTransaction(number=number, branches=branches, drops_others=int(drops_others)))

    def whole(self, stream: str, routed_ids: Sequence[int], *payloads: bytes) -> int:
        """Add all frames of a transaction that appends these to each segment; return its number."""
        number = self.begin(stream)
        for part_id in self.parts(number, routed_ids):
            self.append(part_id, *payloads)
        self.commit(number, (0, len(routed_ids) * len(payloads)))
        return number

    async def send(self) -> None:
        """Send all frames in one piece."""
        frames, self._frames = b"".join(self._frames), []
        await self.peer.send(frames)

    def abandon(self) -> bytes:
        """Return what was not sent, and forget it."""
        frames, self._frames, self._requests, self._appends = b"".join(self._frames), [], [], []
        return frames

    async def told(self) -> Told:
        """Send what was not sent, and return what comes back, in the order of the frames."""
        await self.send()
        replies: list[m.Message | RefusedError] = []
        for request_id in self._requests:
            try:
                replies.append(await self.peer.reply(request_id, m.Message))
            except RefusedError as error:
                replies.append(error)
        outcomes = await self.peer.settled(self._appends)
        self._requests, self._appends = [], []
        return Told(replies, outcomes)
