"""A raw connection to a server that loses the container: what it sends into the silence must never be answered."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from millrace.wire import messages as m
from tests.crash.failover.member import Member
from tests.support.protocol import Peer, SocketPeer, Stored

STORED_COUNT: Final = 3
SILENT_COUNT: Final = 5
END_S_MAX: Final = 60.0


@dataclass
class Witness:
    """Appends to a segment of its own, as one that does not reconnect.

    Attributes:
        sent: the payloads in their order, with the request id of each.
        late: those of requests that the server got when it could not have the container any more.
    """

    peer: SocketPeer
    name: str
    segment_id: int
    sent: dict[int, bytes] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)

    @classmethod
    async def of(cls, member: Member, name: str) -> "Witness":
        """Connect to a server, and store something."""
        peer = await Peer.connect(member.address)
        witness = cls(peer, name, await peer.create_segment(name))
        await witness.peer.settled(await witness.send(STORED_COUNT))
        return witness

    async def send(self, count: int = SILENT_COUNT, *, is_late: bool = False) -> Sequence[int]:
        """Send appends, without waiting for anything; the connection may be at its end."""
        payloads = [b"<%s:%d>" % (self.name.encode(), len(self.sent) + index) for index in range(count)]
        try:
            request_ids = await self.peer.append(self.segment_id, *payloads)
            if is_late:
                await self.peer.start(m.GetSegment(self.segment_id, ""))
        except ConnectionError:
            return []
        self.sent |= zip(request_ids, payloads, strict=True)
        if is_late:
            self.late |= set(request_ids)
        return request_ids

    async def check(self, owner: Member) -> int:
        """Wait for the end of the connection; compare with what the next owner has. Return how many acks were missing.

        Raises:
            AssertionError: something late was acknowledged, or is there, or was told; or something acknowledged is not
                there.
        """
        told = [each for each in await self.peer.ended(END_S_MAX) if isinstance(each, m.SegmentInfo)]
        assert not told, f"a zombie has told what it could not know: {told}"
        await self.peer.close()
        acknowledged = [each for each, outcome in self.peer.outcomes.items() if isinstance(outcome, Stored)]
        assert not self.late.intersection(acknowledged), f"a zombie acknowledged {self.late.intersection(acknowledged)}"
        async with await Peer.connect(owner.address) as peer:
            content = await peer.read_all(self.segment_id)
        found = [part + b">" for part in content.split(b">")[:-1]]
        assert found == list(self.sent.values())[: len(found)], f"{found} is no beginning of what was sent"
        missing = set(acknowledged) - set(list(self.sent)[: len(found)])
        assert not missing, f"acknowledged and not there: {missing}; there is {found}"
        assert not self.late.intersection(list(self.sent)[: len(found)]), f"sent to a zombie, and there: {found}"
        return len(self.sent) - len(acknowledged)
