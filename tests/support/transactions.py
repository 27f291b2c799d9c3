"""Transactions over a raw connection: what a client does, one request after the other."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from millrace.model.producer import Producer
from millrace.wire import messages as m
from tests.support.protocol import Outcome, Peer


@dataclass
class PeerTransaction:
    """A transaction that a test has begun or joined.

    Attributes:
        writer: under which it appends to its parts.
        ids: reserved and not yet used.
        parts: by branch and segment of the stream, the part with its events.
        counts: how many events each branch has.
    """

    peer: Peer
    info: m.TransactionReply
    writer: m.WriterOpened
    ids: list[int]
    parts: dict[tuple[int, int], int] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    _stored: dict[int, int] = field(default_factory=dict)

    @classmethod
    async def begin(
        cls,
        peer: Peer,
        *streams: str,
        name: str = "",
        lease_ms: int = 30_000,
        ids_count: int = 100,
        producer: Producer | None = None,
    ) -> "PeerTransaction":
        ids = await reserve(peer, ids_count)
        writer = await peer.open_writer("")
        request = begin_request(ids.pop(0), *streams, name=name, lease_ms=lease_ms, producer=producer)
        info = await peer.ask(request, m.TransactionReply)
        return cls(peer, info, writer, ids)

    @property
    def number(self) -> int:
        return self.info.number

    @property
    def routed_ids(self) -> list[int]:
        """The segments that were open when it began, in the order of streams and keys."""
        return [segment_id for stream in self.info.streams for segment_id, _, _ in stream.ranges]

    async def add_parts(self, routed_ids: Iterable[int], *, branch: int = 0) -> m.Done:
        new = [m.NewPart(self.ids.pop(0), routed_id) for routed_id in routed_ids]
        done = await self.peer.ask(m.AddParts(number=self.number, branch=branch, parts=new), m.Done)
        self.parts |= {(branch, part.routed_id): part.segment_id for part in new}
        return done

    async def append(self, routed_id: int, *payloads: bytes, branch: int = 0) -> list[Outcome]:
        """Append events to the part of a segment; they count as events of their branch even if they are refused."""
        part_id = self.parts[branch, routed_id]
        first = self._stored.get(part_id, 0) + 1
        self._stored[part_id] = first + len(payloads) - 1
        self.counts[branch] = self.counts.get(branch, 0) + len(payloads)
        return await self.peer.settled(await self.send(part_id, *payloads, event_number=first))

    async def send(self, part_id: int, *payloads: bytes, event_number: int) -> list[int]:
        return await self.peer.append(
            part_id,
            *payloads,
            event_number=event_number,
            writer_number=self.writer.writer_number,
            writer_epoch=self.writer.writer_epoch,
        )

    async def write(self, *payloads: bytes, branch: int = 0) -> None:
        """Append each payload to every segment, in a part that is added where there is none."""
        missing = [routed_id for routed_id in self.routed_ids if (branch, routed_id) not in self.parts]
        if missing:
            await self.add_parts(missing, branch=branch)
        for routed_id in self.routed_ids:
            outcomes = await self.append(routed_id, *payloads, branch=branch)
            assert all(isinstance(outcome, tuple) for outcome in outcomes), outcomes

    def commit_request(
        self, *branches: int, drops_others: bool = False, cursors: Sequence[m.CursorMove] = ()
    ) -> m.CommitTransaction:
        counts = [m.BranchCount(branch, self.counts.get(branch, 0)) for branch in branches or sorted(self.counts)]
        return m.CommitTransaction(
            number=self.number, name="", branches=counts, drops_others=int(drops_others), cursors=list(cursors)
        )

    async def commit(
        self, *branches: int, drops_others: bool = False, cursors: Sequence[m.CursorMove] = ()
    ) -> m.TransactionReply:
        request = self.commit_request(*branches, drops_others=drops_others, cursors=cursors)
        return await self.peer.ask(request, m.TransactionReply)

    async def prepare(self, *branches: int, drops_others: bool = False) -> m.TransactionReply:
        request = self.commit_request(*branches, drops_others=drops_others)
        return await self.peer.ask(
            m.PrepareTransaction(number=request.number, branches=request.branches, drops_others=request.drops_others),
            m.TransactionReply,
        )

    async def abort(self) -> m.TransactionReply:
        return await self.peer.ask(m.AbortTransaction(self.number, ""), m.TransactionReply)


async def reserve(peer: Peer, count: int) -> list[int]:
    """Return numbers that are the peer's."""
    found = await peer.ask(m.ReserveIds(count), m.IdRange)
    assert found.count == count
    return list(range(found.first, found.first + count))


def begin_request(
    number: int, *streams: str, name: str = "", lease_ms: int = 30_000, producer: Producer | None = None
) -> m.BeginTransaction:
    routed = [m.RoutedStream(stream, 0, 0) for stream in streams]
    producers = [] if producer is None else [m.ProducerClaim(*producer)]
    return m.BeginTransaction(number=number, name=name, lease_ms=lease_ms, streams=routed, producers=producers)


async def outcome_of(peer: Peer, *, number: int = 0, name: str = "") -> m.TransactionInfo:
    return await peer.ask(m.GetTransaction(number, name), m.TransactionInfo)


async def create_stream(peer: Peer, name: str, segment_count: int) -> list[int]:
    """Create a stream and return its segments in the order of their keys."""
    info = await peer.ask(m.CreateStream(name, segment_count, "{}"), m.StreamInfo)
    return [segment.segment_id for segment in info.segments]


async def content_of(peer: Peer, stream: str) -> dict[int, bytes]:
    """Return the bytes of each segment of a stream that has some, by its id."""
    info = await peer.ask(m.GetStream(stream), m.StreamInfo)
    found = {segment.segment_id: await peer.read_all(segment.segment_id) for segment in info.segments}
    return {segment_id: data for segment_id, data in found.items() if data}
