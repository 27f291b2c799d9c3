"""Writes events of a transaction that are for one stream, into its parts.

It is a writer whose segments are the parts: one for each range of keys that was open when the transaction began,
however the stream is scaled meanwhile. A part is announced when its first block is to be sent; those that are needed in
the same turn of the loop are announced together. Their blocks leave right after that, without waiting for an answer.

What a part refuses was not announced well, and then the server has stored nothing of it: it is announced again, or the
transaction begins again, and the events are moved to parts of that. Or the transaction is over.
"""

import asyncio
from collections.abc import Callable, Sequence

from millrace.client.errors import SegmentNotFoundError, TransactionCommittedError
from millrace.client.transport.channel import Channel
from millrace.client.transport.connection import Connection
from millrace.client.transport.retry import Retry
from millrace.client.write.accumulator import Accumulator
from millrace.client.write.events import Block
from millrace.client.write.opening import Opening
from millrace.client.write.options import WriterOptions
from millrace.client.write.reroute import Rerouter, Successors
from millrace.client.write.segment_writer import SegmentWriter, SenderState
from millrace.client.write.sequences import NO_SEQUENCES
from millrace.client.write.writer import Writer
from millrace.model.errors import InvalidArgumentError, MillraceError
from millrace.model.transaction import IMPLICIT_BRANCH
from millrace.wire import messages as m

from .beginning import Announcement, Attempt, Beginning
from .identities import NEVER, WriterIdentity
from .outcome import explained


class Part(SegmentWriter):
    """The sender to one part; it has the id of the stream's segment until it is announced.

    Args:
        is_ready: returns whether its next block may be sent now.

    Attributes:
        routed_id: the segment that had these keys when the transaction began.
        attempt: to which it was announced; None before that.
        announcement: what tells the server of it.
        void_since: see `Identities.forget_void`, of its number.
        is_early: something was sent to it before it was known that the server has it.
    """

    __slots__ = ("_is_ready", "announcement", "attempt", "is_early", "routed_id", "void_since")

    def __init__(self, routed_id: int, accumulator: Accumulator, *, is_ready: "Callable[[Part], bool]") -> None:
        super().__init__(routed_id, accumulator)
        self.routed_id = routed_id
        self._is_ready = is_ready
        self.attempt: Attempt | None = None
        self.announcement: Announcement | None = None
        self.void_since = NEVER
        self.is_early = False

    def next_block(self) -> Block | None:
        """Return the block to be sent now; before the part is announced, see to that and return None."""
        block = super().next_block()
        return block if block is not None and self._is_ready(self) else None

    def announced(self, segment_id: int, attempt: Attempt, announcement: Announcement) -> None:
        """Send to this segment from now on."""
        self.segment_id, self.attempt, self.announcement = segment_id, attempt, announcement

    @property
    def has_unknown(self) -> bool:
        """As of any segment; but of an attempt that was refused nothing is stored."""
        return super().has_unknown and not (self.attempt is not None and self.attempt.is_over)

    def acked(self, block: Block) -> list[Block]:
        """As of any segment; and what has stored something the server knows, whatever becomes of the other answers."""
        if self.attempt is not None and self.announcement is not None:
            self.attempt.announcement.is_known = self.announcement.is_known = True
        return super().acked(block)

    def failed(self, block: Block, error: MillraceError) -> None:
        """Keep a block that has no ack. Where there is no part nothing is stored, or the transaction is over."""
        if isinstance(error, TransactionCommittedError):  # in a moment there will be no part
            error = SegmentNotFoundError(str(error))
        if isinstance(error, SegmentNotFoundError):
            self._unknown_through = 0
        super().failed(block, error)


class _PartsRerouter(Rerouter):
    """Finds what becomes of blocks that a part refuses."""

    def __init__(self, writer: "PartsWriter", channel: Channel, stream: str, *, stream_id: int, epoch: int) -> None:
        super().__init__(channel, stream, stream_id=stream_id, writer_id="", epoch=epoch)
        self._writer = writer

    @property
    def is_needed(self) -> bool:
        """Whether the transaction began again."""
        return self._writer.is_outdated

    async def find(self, segments: Sequence[SegmentWriter], retry: Retry) -> Successors | None:
        """Return the parts of the attempt after this one; None if the same are to be sent to again.

        Raises:
            MillraceError: the transaction cannot begin, or takes nothing more, and why.
        """
        return await self._writer.recover(retry)


class PartsWriter(Writer):
    """The writer of one stream of a transaction.

    Args:
        beginning: of the transaction.
        branch: whose events they are.
    """

    def __init__(
        self, channel: Channel, stream: str, *, beginning: Beginning, branch: int, options: WriterOptions
    ) -> None:
        super().__init__(channel, stream, writer_id=None, options=options)
        self._beginning = beginning
        self._attempt = beginning.current
        self._branch = branch
        self._missing: list[Part] = []
        self._reserving: asyncio.Task[None] | None = None
        self._targets.make_segment = lambda routed_id, gathered: Part(routed_id, gathered, is_ready=self._is_ready)

    def start(self, identity: WriterIdentity) -> None:
        """Take events from now on, under this number and epoch of a writer."""
        self.number, self.epoch = identity
        route = self._attempt.routes[self.stream]
        opening = Opening(
            number=identity.number,
            epoch=identity.epoch,
            known=False,
            stream_id=route.stream_id,
            router=route.router,
            last_event_numbers={},
            sequences=NO_SEQUENCES,
        )
        rerouter = _PartsRerouter(self, self._channel, self.stream, stream_id=route.stream_id, epoch=identity.epoch)
        self._delivery.start(opening, rerouter)
        self._beginning.listeners[self] = self._delivery.reroute

    @property
    def event_count(self) -> int:
        """How many events were taken: so many the parts have if all is stored. Those that were given up count too."""
        return self._delivery.taken_count

    @property
    def has_taken(self) -> bool:
        """Whether an event was written."""
        return self._delivery.has_taken

    @property
    def refusal(self) -> MillraceError | None:
        """Why nothing more can be written."""
        return self._delivery.refusal

    @property
    def is_outdated(self) -> bool:
        """Whether the transaction began again, and the events have not been moved yet."""
        return self._attempt is not self._beginning.current

    async def sent(self) -> None:
        """Wait until everything written so far is on its way, or has its outcome. Cancelling is safe."""
        if self._delivery.has_gathered:
            self._delivery.pack_gathered()
        self._announce_missing()
        await self._delivery.sent()

    def all_stored(self) -> None:
        """Know that everything is stored: the commit says so."""
        self._delivery.all_stored()

    def send_again(self) -> None:
        """Send what was held back meanwhile; move it, if the transaction began again."""
        self._delivery.reroute()
        self._delivery.pump_all()

    def end(self, error: MillraceError) -> None:
        """Take nothing more; what has no outcome yet fails with `error`."""
        if self._reserving is not None:
            self._reserving.cancel()
        self._beginning.listeners.pop(self, None)
        self._delivery.stop(error)

    async def recover(self, retry: Retry) -> Successors | None:
        """Do what `_PartsRerouter.find` says."""
        try:
            return await self._recover(retry)
        except TransactionCommittedError as error:
            if not self._beginning.is_ending:
                self._delivery.fail(error)
                raise
            # By a commit that was sent before the connection was lost; it says of how many events.
            self.all_stored()
            for part in self._targets.segments:
                if part.answered_state is SenderState.REJECTED:
                    part.resume()
            return None
        except MillraceError as error:
            self._delivery.fail(error)  # as it is: to have sent it again and again says nothing more
            raise

    async def _recover(self, retry: Retry) -> Successors | None:
        current = await self._beginning.known_to_server()
        if self._attempt is not current:
            self._attempt = current
            router = current.routes[self.stream].router
            return Successors(router=router, last_numbers={})
        for part in self._targets.segments:
            if isinstance(part, Part) and part.answered_state is SenderState.REJECTED:
                await self._announce_again(part, retry)
        return None

    async def _announce_again(self, part: Part, retry: Retry) -> None:
        """Announce a part again that refused what was sent to it; raise if that is no use."""
        announcement = part.announcement
        assert announcement is not None
        if await self._is_announced(announcement, part, retry):
            if not part.is_early:
                refused = SegmentNotFoundError(f"{self.stream}: the transaction has lost what it wrote")
                raise await explained(self._channel, self._attempt.number, refused)
            part.is_early = False  # refused with the announcement, which was sent again
        part.resume()

    async def _is_announced(self, announcement: Announcement, part: Part, retry: Retry) -> bool:
        """Ask for a part until it is there; return False if its number was void: it gets another one."""
        while True:
            try:
                await announcement.answered(self._channel, retry)
            except InvalidArgumentError as refusal:
                part.void_since = self._beginning.identities.forget_void(refusal, since=part.void_since)
                part.announcement = None
                return False
            except MillraceError as error:
                await retry.wait(error)
            else:
                return True

    def _is_ready(self, part: Part) -> bool:
        """Return whether a block of a part may be sent now; send or prepare what has to be sent before it."""
        if self._beginning.is_held or self.is_outdated:
            return False
        if part.announcement is None:
            if not self._missing:
                asyncio.get_running_loop().call_soon(self._announce_missing)
            if part not in self._missing:
                self._missing.append(part)
            return False
        if not part.announcement.is_known:
            part.is_early = True
            if (connection := self._channel.live) is not None:
                self._send_announcements(part.announcement, connection)
        return True

    def _announce_missing(self) -> None:
        """Announce the parts that are needed, and send what waits for them."""
        missing = [part for part in self._missing if part.announcement is None]
        self._missing.clear()
        if not missing or self.is_outdated or self.refusal is not None:
            return
        ids = self._beginning.identities.take_now(len(missing))
        if ids is None:
            self._missing = missing
            if self._reserving is None:
                self._reserving = asyncio.create_task(self._reserve(), name=f"transaction adds parts for {self.stream}")
            return
        new = [m.NewPart(each, part.routed_id) for each, part in zip(ids, missing, strict=True)]
        if self._branch == IMPLICIT_BRANCH and self._attempt.add_parts(new):
            announcement = self._attempt.announcement
        else:
            announcement = Announcement(m.AddParts(number=self._attempt.number, branch=self._branch, parts=new))
        for part, segment_id in zip(missing, ids, strict=True):
            part.announced(segment_id, self._attempt, announcement)
        for part in missing:
            self._delivery.sender.pump(part)

    async def _reserve(self) -> None:
        """Wait for numbers, and continue."""
        try:
            await self._beginning.identities.reserve(len(self._missing))
        except MillraceError as error:
            self._delivery.fail(error)
            return
        finally:
            self._reserving = None
        self._announce_missing()

    def _send_announcements(self, announcement: Announcement, connection: Connection) -> None:
        """Send what has to be sent before the blocks of a part; on a connection that is lost nothing is."""
        try:
            self._beginning.announce(connection)
            if announcement is not self._attempt.announcement:
                announcement.send(connection)
        except MillraceError:
            return  # the blocks meet the same
