"""What one client has in flight, and what another one is answered because of it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from millrace.model.key_range import KEY_SPACE
from millrace.server.kinds.writers.commands import WriterCommands
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.support.memory_log import LogMedium
from tests.support.protocol import Peer, RefusedError, Stored, set_attribute
from tests.support.scenario import Run
from tests.support.transactions import begin_request, reserve
from tests.support.waiting import until

HALVES = [m.KeyRangeRecord(0, 9), m.KeyRangeRecord(10, KEY_SPACE - 1)]


@dataclass
class Scene:
    """A container whose log can stall, and two clients of it: what one has in flight, the other one is refused for.

    Attributes:
        ids: what `prepare` made, by name.
    """

    run: Run
    log: LogMedium
    first: Peer
    second: Peer
    ids: dict[str, int] = field(default_factory=dict)

    @property
    def in_flight(self) -> int:
        return len(self.run.container.in_flight)

    async def prepare(self) -> None:
        """Make one of everything."""
        peer = self.first
        for name in ("a", "b", "sealed"):
            self.ids[name] = await peer.create_segment(f"raw/{name}")
        await peer.store(self.ids["sealed"], b"bytes")
        await peer.ask(m.SealSegment(self.ids["sealed"]), m.SegmentInfo)
        opened = await peer.open_writer("w", self.ids["a"])
        self.ids["writer"] = opened.writer_number
        for name in ("s", "gone"):
            stream = await peer.ask(m.CreateStream(f"raw/{name}", 1, ""), m.StreamInfo)
            self.ids[name] = stream.segments[0].segment_id
            if name == "s":
                self.ids["stream"] = stream.stream_id
        await peer.ask(m.SealStream("raw/gone"), m.StreamInfo)
        self.ids["held"] = (await peer.ask(m.CreateStream("raw/held", 1, ""), m.StreamInfo)).stream_id
        await peer.ask(m.OpenWriter("h", [], 0, self.ids["held"], exclusive=1), m.WriterOpened)
        await peer.ask(m.CreateStream("raw/over", 1, ""), m.StreamInfo)
        self.ids["transaction"], self.ids["spare"] = await reserve(peer, 2)
        await peer.ask(begin_request(self.ids["transaction"], "raw/over", name="t"), m.TransactionReply)
        await peer.ask(m.SaveCuts("raw/s", [m.NamedCut(1, "cut", [m.SavedPosition(self.ids["s"], 0, 0)])]), m.Done)

    async def stall(self, start: "Case | None" = None) -> None:
        """Stall the log; with a case, when the log was given what it puts in flight."""
        self.log.is_stalled = True
        if start is not None:
            await start.begin(self)
            await until(lambda: self.in_flight)

    async def append(self, peer: Peer, name: str, **fields: int) -> "ErrorCode | Stored":
        """Return the outcome of an append of one event."""
        (outcome,) = await peer.settled(await peer.append(self.ids[name], b"x", **fields))
        return outcome

    async def append_of_writer(self, peer: Peer, number: int, epoch: int = 1) -> "ErrorCode | Stored":
        """Return the outcome of an append of the writer."""
        return await self.append(peer, "a", writer_number=self.ids["writer"], writer_epoch=epoch, event_number=number)


@dataclass(frozen=True)
class Case:
    """What is in flight, and what is answered because of it.

    Attributes:
        begin: sends the first request and does not wait for its answer.
        ask: sends the second one, and returns its answer.
        answer: the right one.
        is_refusal: whether it is void, to be tried again, if the log fails; else it is of unknown outcome.
    """

    begin: Callable[[Scene], Awaitable[object]]
    ask: Callable[[Scene], Awaitable[object]]
    answer: object
    is_refusal: bool = True


def sent(request: Callable[[Scene], m.Message]) -> Callable[[Scene], Awaitable[object]]:
    return lambda scene: scene.first.start(request(scene))


def asked(request: Callable[[Scene], m.Message], kind: type[m.Message]) -> Callable[[Scene], Awaitable[object]]:
    async def ask(scene: Scene) -> object:
        try:
            return await scene.second.ask(request(scene), kind)
        except RefusedError as error:
            return error.code

    return ask


async def expire(scene: Scene) -> None:
    expired = WriterCommands(scene.run.container).expire(marked=[scene.ids["writer"]], forgotten=[])
    expired.add_done_callback(lambda done: done.exception())


def append(scene: Scene) -> Awaitable[object]:
    return scene.first.append(scene.ids["a"], b"x")


def append_of_writer(scene: Scene) -> Awaitable[object]:
    return scene.first.append(scene.ids["a"], b"x", writer_number=scene.ids["writer"], writer_epoch=1, event_number=1)


def attribute(expected: bytes | None, value: bytes) -> Callable[[Scene], m.Message]:
    return lambda scene: set_attribute(scene.ids["a"], "key", expected=expected, value=value)


def delete(scene: Scene) -> m.Message:
    return m.DeleteSegment(scene.ids["a"])


def merge(scene: Scene) -> m.Message:
    return m.MergeSegment(target_id=scene.ids["a"], source_id=scene.ids["sealed"])


def commit(scene: Scene) -> m.Message:
    return m.CommitTransaction(number=scene.ids["transaction"], name="", branches=[], drops_others=0, cursors=[])


def abort(scene: Scene) -> m.Message:
    return m.AbortTransaction(scene.ids["transaction"], "")


def scale(scene: Scene) -> m.Message:
    return m.ScaleStream("raw/s", [scene.ids["s"]], HALVES)


CASES = {
    "wrong offset": Case(
        append, lambda scene: scene.append(scene.second, "a", expected_offset=0), ErrorCode.CONDITION_FAILED
    ),
    "attribute mismatch": Case(
        sent(attribute(None, b"1")),
        asked(attribute(None, b"2"), m.Attribute),
        ErrorCode.ATTRIBUTE_CONDITION_FAILED,
    ),
    "exists": Case(
        sent(lambda _: m.CreateSegment("raw/new")),
        asked(lambda _: m.CreateSegment("raw/new"), m.SegmentInfo),
        ErrorCode.SEGMENT_EXISTS,
    ),
    "sealed": Case(
        sent(lambda scene: m.SealSegment(scene.ids["a"])),
        lambda scene: scene.append(scene.second, "a"),
        ErrorCode.SEGMENT_SEALED,
    ),
    "an append to what is being deleted": Case(
        sent(delete), lambda scene: scene.append(scene.second, "a"), ErrorCode.SEGMENT_NOT_FOUND
    ),
    "deleted twice": Case(sent(delete), asked(delete, m.Done), ErrorCode.SEGMENT_NOT_FOUND),
    "sealed while it is being deleted": Case(
        sent(delete), asked(lambda scene: m.SealSegment(scene.ids["a"]), m.SegmentInfo), ErrorCode.SEGMENT_NOT_FOUND
    ),
    "an attribute of what is being deleted": Case(
        sent(delete), asked(attribute(None, b"1"), m.Attribute), ErrorCode.SEGMENT_NOT_FOUND
    ),
    "an append to what is being merged": Case(
        sent(merge), lambda scene: scene.append(scene.second, "sealed"), ErrorCode.SEGMENT_NOT_FOUND
    ),
    "deleted while it is being merged": Case(
        sent(merge), asked(lambda scene: m.DeleteSegment(scene.ids["sealed"]), m.Done), ErrorCode.SEGMENT_NOT_FOUND
    ),
    "fenced": Case(
        sent(lambda scene: m.OpenWriter("w", [scene.ids["a"]], 0)),
        lambda scene: scene.append_of_writer(scene.second, 1),
        ErrorCode.WRITER_FENCED,
    ),
    "expired": Case(expire, lambda scene: scene.append_of_writer(scene.second, 1), ErrorCode.WRITER_EXPIRED),
    "excluded": Case(
        sent(lambda scene: m.OpenWriter("x", [], 0, scene.ids["stream"], exclusive=1)),
        lambda scene: scene.append(scene.second, "s"),
        ErrorCode.WRITER_EXCLUDED,
    ),
    "a tail that was expected elsewhere": Case(
        lambda scene: scene.first.append(scene.ids["s"], b"x"),
        asked(
            lambda scene: m.OpenWriter(
                "x",
                [],
                0,
                scene.ids["stream"],
                exclusive=1,
                expected=[m.SavedPosition(scene.ids["s"], 0, 0)],
            ),
            m.WriterOpened,
        ),
        ErrorCode.TAIL_CHANGED,
    ),
    "released twice": Case(
        sent(lambda scene: m.ReleaseStream(stream_id=scene.ids["held"])),
        asked(lambda scene: m.ReleaseStream(stream_id=scene.ids["held"]), m.Done),
        m.Done(0),
    ),
    "a gap in the numbers": Case(
        append_of_writer, lambda scene: scene.append_of_writer(scene.second, 3), ErrorCode.EVENT_NUMBER_GAP
    ),
    "stored already": Case(
        append_of_writer,
        lambda scene: scene.append_of_writer(scene.second, 1),
        Stored(-1, duplicate=True),
        is_refusal=False,
    ),
    "a stream that exists": Case(
        sent(lambda _: m.CreateStream("raw/new", 1, "")),
        asked(lambda _: m.CreateStream("raw/new", 1, ""), m.StreamInfo),
        "created 0",
    ),
    "a stream deleted twice": Case(
        sent(lambda _: m.DeleteStream("raw/gone")), asked(lambda _: m.DeleteStream("raw/gone"), m.Done), m.Done(0)
    ),
    "a sealed stream scaled": Case(
        sent(lambda _: m.SealStream("raw/s")), asked(scale, m.StreamInfo), ErrorCode.STREAM_SEALED
    ),
    "a cut forgotten twice": Case(
        sent(lambda _: m.ForgetCut("raw/s", 1, "cut")),
        asked(lambda _: m.ForgetCut("raw/s", 1, "cut"), m.Done),
        m.Done(0),
    ),
    "an argument, which may be too many": Case(
        sent(lambda scene: m.SaveCuts("raw/s", [m.NamedCut(1, "one", [m.SavedPosition(scene.ids["s"], 0, 0)])])),
        asked(lambda scene: m.SaveCuts("raw/s", [m.NamedCut(1, "", [m.SavedPosition(scene.ids["s"], 0, 0)])]), m.Done),
        ErrorCode.INVALID_ARGUMENT,
    ),
    "a transaction begun again by name while it is committed": Case(
        sent(commit),
        asked(lambda scene: begin_request(scene.ids["spare"], "raw/over", name="t"), m.TransactionReply),
        ErrorCode.TRANSACTION_COMMITTED,
    ),
    "aborted while it is committed": Case(
        sent(commit), asked(abort, m.TransactionReply), ErrorCode.TRANSACTION_COMMITTED
    ),
    "committed while it is aborted": Case(
        sent(abort), asked(commit, m.TransactionReply), ErrorCode.TRANSACTION_ABORTED
    ),
    "a stream sealed while a transaction over it is prepared": Case(
        sent(lambda scene: m.PrepareTransaction(number=scene.ids["transaction"], branches=[], drops_others=0)),
        asked(lambda _: m.SealStream("raw/over"), m.StreamInfo),
        ErrorCode.TRANSACTION_PREPARED,
    ),
}
