"""Where the log has lost content, only what is proven is answered, and nothing is said to be missing."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from millrace.model.transaction import TransactionState
from millrace.server.app import Server
from millrace.server.front.read_only_guard import ANSWERABLE_AFTER_LOSS
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.support.files import MemoryFileSystem
from tests.support.protocol import Peer, RefusedError, code_of, set_attribute
from tests.support.servers import server_options
from tests.support.storage import FaultyStorage
from tests.support.transactions import PeerTransaction, outcome_of, reserve

pytestmark = pytest.mark.asyncio

FOLDER = Path("/data")
LOG = FOLDER / "containers" / "0000" / "wal"


@dataclass
class Disk:
    """What a server that was killed has left.

    Attributes:
        ids: what is there, by name; those in capitals came after the checkpoint.
    """

    files: MemoryFileSystem = field(default_factory=MemoryFileSystem)
    storage: FaultyStorage = field(default_factory=FaultyStorage)
    ids: dict[str, int] = field(default_factory=dict)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[tuple[Server, Peer]]:
        async with Server(server_options(FOLDER), files=self.files, storage=self.storage) as server:
            async with await Peer.connect(server.address) as peer:
                yield server, peer

    async def fill(self, server: Server, peer: Peer) -> None:
        """Make one of everything, save a checkpoint, and make more of it."""
        ids = self.ids
        for name in ("a", "sealed"):
            ids[name] = await peer.create_segment(f"raw/{name}")
            await peer.store(ids[name], b"left")
        await peer.ask(m.SealSegment(ids["sealed"]), m.SegmentInfo)
        await peer.ask(set_attribute(ids["a"], "key", expected=None, value=b"1"), m.Attribute)
        stream = await peer.ask(m.CreateStream("raw/s", 1, ""), m.StreamInfo)
        ids["stream"], ids["s"] = stream.stream_id, stream.segments[0].segment_id
        ids["writer"] = (await peer.open_writer("w", ids["a"])).writer_number
        for name in ("committed", "aborted"):
            transaction = await PeerTransaction.begin(peer, "raw/s", name=name)
            ids[name] = transaction.number
            await transaction.write(b"event")
            await (transaction.commit() if name == "committed" else transaction.abort())
        transaction = await PeerTransaction.begin(peer, "raw/s", name="open")
        ids["open"] = transaction.number
        await transaction.write(b"event")
        ids["LATE"], *_ = await reserve(peer, 3)
        await server.opened.flusher.flush()
        await server.opened.flusher.checkpoint()
        # All of this is acknowledged, and lost.
        await peer.store(ids["a"], b"lost", writer_number=ids["writer"], writer_epoch=1, event_number=1)
        await peer.ask(set_attribute(ids["a"], "key", expected=b"1", value=b"2"), m.Attribute)
        await peer.create_segment("raw/LATE")
        await peer.ask(m.CreateStream("raw/LATE", 1, ""), m.StreamInfo)
        await transaction.commit()

    def lose_log(self) -> None:
        for name in self.files.list_directory(LOG):
            if name.endswith(".log"):
                self.files.remove(LOG / name)


@pytest_asyncio.fixture
async def disk() -> AsyncIterator[Disk]:
    disk = Disk()
    async with disk.served() as (server, peer):
        await disk.fill(server, peer)
        killed = Disk(disk.files.copy(), disk.storage.copy(), disk.ids)
        killed.lose_log()
    yield killed


async def test_what_is_left_is_answered(disk: Disk) -> None:
    """Behaviour 82: the bytes that are left, what was sealed, and which transactions are over for good."""
    async with disk.served() as (_, peer):
        assert await peer.read_all(disk.ids["a"]) == b"left"
        assert (await peer.info(disk.ids["sealed"])).sealed
        assert not (await peer.ask(m.CreateStream("raw/s", 1, ""), m.StreamInfo)).created
        assert [each.name for each in (await peer.ask(m.ListStreams("", "", 10), m.StreamList)).names] == ["raw/s"]
        (tail,) = (await peer.ask(m.GetTails([m.NamedStream("raw/s")]), m.StreamTails)).tails
        assert [each.offset for each in tail.positions] == [len(b"event")]
        for name, state in (("committed", TransactionState.COMMITTED), ("aborted", TransactionState.ABORTED)):
            assert (await outcome_of(peer, number=disk.ids[name])).state == state
        assert (await outcome_of(peer, name="committed")).state == TransactionState.COMMITTED


QUESTIONS: dict[str, Callable[[dict[str, int]], m.Message]] = {
    "an attribute": lambda ids: m.GetAttribute(ids["a"], "key"),
    "a cursor": lambda ids: m.ListCuts("raw/s"),
    "how far a writer is": lambda ids: m.GetWriter("w", [ids["a"]]),
    "a transaction that is open": lambda ids: m.GetTransaction(ids["open"], ""),
    "by its name": lambda ids: m.GetTransaction(0, "open"),
    "a number that is in use by now": lambda ids: m.GetTransaction(ids["LATE"], ""),
    "a name that another one may have": lambda ids: m.GetTransaction(0, "aborted"),
    "a name that nobody has": lambda ids: m.GetTransaction(0, "LATE"),
    "what is open": lambda ids: m.ListTransactions(0, 10),
    "a lease": lambda ids: m.RenewTransactions([ids["open"]]),
    "a segment that may be there": lambda ids: m.GetSegment(0, "raw/LATE"),
    "by its number": lambda ids: m.GetSegment(ids["LATE"] + 100, ""),
    "a stream that may be there": lambda ids: m.GetStream("raw/LATE"),
    "its end": lambda ids: m.GetTails([m.NamedStream("raw/LATE")]),
    "its bytes": lambda ids: m.Read(segment_id=ids["LATE"] + 100, offset=0, size_max=1, wait_ms=0),
    "bytes that may be there": lambda ids: m.Read(segment_id=ids["a"], offset=8, size_max=1, wait_ms=0),
    "its bytes as they come": lambda ids: m.Subscribe(ids["LATE"] + 100, 0, 10),
    "a stream to be deleted": lambda ids: m.DeleteStream("raw/LATE"),
    "a cut to be forgotten": lambda ids: m.ForgetCut("raw/s", 1, "cut"),
    "a stream to be released": lambda ids: m.ReleaseStream(stream_id=ids["stream"]),
    "a writer to be opened": lambda ids: m.OpenWriter("w", [], 0),
    "a transaction to be committed": lambda ids: m.CommitTransaction(
        number=ids["committed"], name="", branches=[], drops_others=0, cursors=[]
    ),
    "a transaction to be begun": lambda ids: m.BeginTransaction(
        number=ids["LATE"] + 1, name="committed", lease_ms=30_000, streams=[m.RoutedStream("raw/s", 0, 0)], producers=[]
    ),
    "a producer": lambda ids: m.GetProducer("query"),
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=list(QUESTIONS))
async def test_what_may_be_lost_is_not_denied(disk: Disk, question: Callable[[dict[str, int]], m.Message]) -> None:
    """Behaviour 82: neither that it is as it was, nor that it is not there; with the files back it may be."""
    async with disk.served() as (_, peer):
        assert await code_of(peer.ask(question(disk.ids), m.Message)) is ErrorCode.CONTENT_LOST


async def test_what_was_acknowledged_is_not_told_to_be_stored_already(disk: Disk) -> None:
    """Behaviour 82: an append that is sent again is refused, whatever was stored of it."""
    async with disk.served() as (_, peer):
        sent = await peer.append(
            disk.ids["a"], b"lost", writer_number=disk.ids["writer"], writer_epoch=1, event_number=1
        )
        assert await peer.settled(sent) == [ErrorCode.CONTENT_LOST]


async def test_a_server_that_has_lost_nothing_answers_all_of_it() -> None:
    """The questions above are good ones."""
    disk = Disk()
    codes = []
    async with disk.served() as (server, peer):
        await disk.fill(server, peer)
        for question in QUESTIONS.values():
            try:
                await peer.ask(question(disk.ids), m.Message)
            except RefusedError as error:
                codes.append(error.code)
    assert codes
    assert ErrorCode.CONTENT_LOST not in codes


async def test_requests_of_these_kinds_are_no_decisions() -> None:
    """A request that decides something is refused where it decides; of these only one does."""
    assert [cls for cls in ANSWERABLE_AFTER_LOSS if not issubclass(cls, m.Query)] == [m.CreateStream]
