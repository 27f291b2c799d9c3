"""Writes events of a transaction that are for one stream, into its parts.

It is a writer whose segments are the parts: one for each range of keys that was open when the transaction began,
however the stream is scaled meanwhile. A part is asked for when its first block is to be sent; those that are needed in
the same turn of the loop are asked for together. Parts have no successors: one that is gone went with its transaction.
"""

import asyncio
from collections.abc import Callable, Sequence

from millrace.client.errors import SegmentNotFoundError
from millrace.client.transport.channel import Channel
from millrace.client.transport.retry import Retry
from millrace.client.write.accumulator import Accumulator
from millrace.client.write.events import Block
from millrace.client.write.opening import Opening
from millrace.client.write.options import WriterOptions
from millrace.client.write.reroute import Rerouter, Successors
from millrace.client.write.routing import Router
from millrace.client.write.segment_writer import SegmentWriter
from millrace.client.write.sequences import NO_SEQUENCES
from millrace.client.write.writer import Writer
from millrace.model.errors import MillraceError
from millrace.wire import messages as m

from .identities import Identities, WriterIdentity
from .outcome import explained


class Part(SegmentWriter):
    """The sender to one part; it has the id of the stream's segment until there is the part.

    Attributes:
        routed_id: the segment that had these keys when the transaction began.
    """

    __slots__ = ("_ask", "_is_asked", "_is_there", "routed_id")

    def __init__(self, routed_id: int, accumulator: Accumulator, *, ask: "Callable[[Part], None]") -> None:
        super().__init__(routed_id, accumulator)
        self.routed_id = routed_id
        self._ask = ask
        self._is_asked = False
        self._is_there = False

    def next_block(self) -> Block | None:
        """Return the block to be sent now; before there is the part, ask for it and return None."""
        block = super().next_block()
        if self._is_there or block is None:
            return block
        if not self._is_asked:
            self._is_asked = True
            self._ask(self)
        return None

    def is_made(self, segment_id: int) -> None:
        """Send to this segment from now on."""
        self.segment_id = segment_id
        self._is_there = True


class _NoSuccessors(Rerouter):
    """What is found when a part refuses: why the transaction takes nothing more."""

    def __init__(self, channel: Channel, stream: str, *, stream_id: int, epoch: int, number: int) -> None:
        super().__init__(channel, stream, stream_id=stream_id, writer_id="", epoch=epoch)
        self._number = number

    async def find(self, segments: Sequence[SegmentWriter], retry: Retry) -> Successors | None:
        """Raise why; `segments` and `retry` are not used."""
        refused = SegmentNotFoundError(f"{self._name}: the transaction has lost what it wrote")
        raise await explained(self._channel, self._number, refused)


class PartsWriter(Writer):
    """The writer of one stream of a transaction.

    Args:
        number: of the transaction.
        branch: whose events they are.
        route: by which they are routed.
    """

    def __init__(
        self,
        channel: Channel,
        stream: str,
        route: m.TransactionStream,
        *,
        number: int,
        branch: int,
        identities: Identities,
        options: WriterOptions,
    ) -> None:
        super().__init__(channel, stream, writer_id=None, options=options)
        self._route = route
        self._transaction_number = number
        self._branch = branch
        self._identities = identities
        self._missing: list[Part] = []
        self._adding: asyncio.Task[None] | None = None
        self._targets.make_segment = lambda routed_id, gathered: Part(routed_id, gathered, ask=self._ask_for)

    def start(self, identity: WriterIdentity) -> None:
        """Take events from now on, under this number and epoch of a writer."""
        self.number, self.epoch = identity
        stream_id, _, ranges = self._route
        opening = Opening(
            number=identity.number,
            epoch=identity.epoch,
            known=False,
            stream_id=stream_id,
            router=Router([each.segment_id for each in ranges], [each.low for each in ranges]),
            last_event_numbers={},
            sequences=NO_SEQUENCES,
        )
        number = self._transaction_number
        rerouter = _NoSuccessors(self._channel, self.stream, stream_id=stream_id, epoch=identity.epoch, number=number)
        self._delivery.start(opening, rerouter)

    @property
    def event_count(self) -> int:
        """How many events the parts have, once all is flushed."""
        return sum(segment.last_acked_number for segment in self._targets.segments)

    @property
    def has_taken(self) -> bool:
        """Whether an event was written."""
        return self._delivery.has_taken

    @property
    def refusal(self) -> MillraceError | None:
        """Why nothing more can be written."""
        return self._delivery.refusal

    def end(self, error: MillraceError) -> None:
        """Take nothing more; what has no outcome yet fails with `error`."""
        if self._adding is not None:
            self._adding.cancel()
        self._delivery.stop(error)

    def _ask_for(self, part: Part) -> None:
        self._missing.append(part)
        if self._adding is None:
            self._adding = asyncio.create_task(self._add_parts(), name=f"transaction adds parts for {self.stream}")

    async def _add_parts(self) -> None:
        """Create the parts that are missing, and send what waits for them."""
        while self._missing:
            parts, self._missing = self._missing, []

            async def add(ids: list[int], parts: list[Part] = parts) -> list[int]:
                new = [m.NewPart(each, part.routed_id) for each, part in zip(ids, parts, strict=True)]
                request = m.AddParts(number=self._transaction_number, branch=self._branch, parts=new)
                await self._channel.request(request)
                return ids

            try:
                ids = await self._identities.use(len(parts), add)
            except MillraceError as error:
                self._delivery.fail(error)
                return
            for part, segment_id in zip(parts, ids, strict=True):
                part.is_made(segment_id)
                self._delivery.sender.pump(part)
        self._adding = None
