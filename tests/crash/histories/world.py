"""Clients that record what they ask and are told, of a server whose disk is slow, fails, and loses power."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from millrace.server.app import Server
from millrace.wire import messages as m
from millrace.wire.errors import RETRIABLE, ErrorCode
from tests.crash.snapshots import Machine
from tests.support.files import MemoryFileSystem
from tests.support.protocol import Peer, RefusedError, SocketPeer, Stored, set_attribute
from tests.support.servers import QUIET
from tests.support.waiting import PATIENCE_S, until

from .linearizability import Operation

NAMES = ("raw/a", "raw/b")
ANSWERS = {
    ErrorCode.SEGMENT_EXISTS: "exists",
    ErrorCode.SEGMENT_NOT_FOUND: "missing",
    ErrorCode.SEGMENT_SEALED: "sealed",
    ErrorCode.ATTRIBUTE_CONDITION_FAILED: "differs",
}
RETRIED = RETRIABLE | {ErrorCode.PIPELINE_BROKEN}
"""Not stored, try again: it is as if it was never asked."""
LOST = (OSError, EOFError)
TURNS = (0, 10, 100, 300)
"""How many turns of the loop a sync can take."""


class NotStoredError(Exception):
    """The server says that nothing was stored and that it may be tried again."""


@dataclass
class World:
    """One server after the other on one disk, and everything that its clients were told.

    Attributes:
        histories: by name.
        segment_ids: the last segment that anybody saw under a name.
    """

    folder: Path
    seed: int
    operations_per_client: int = 40
    clients: int = 6
    histories: dict[str, list[Operation]] = field(default_factory=lambda: {name: [] for name in NAMES})
    segment_ids: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._machine = Machine(self.folder, QUIET, MemoryFileSystem())
        self._server: Server | None = None
        self._started = asyncio.Event()
        self._peers: set[SocketPeer] = set()
        self._time = count(1)
        self._tokens = count(1)
        self._busy = self.clients

    async def run(self) -> None:
        """Let the clients work on a disk that has its moods, and look at the end at what is there."""
        async with asyncio.timeout(PATIENCE_S):
            await self._start()
            disk = asyncio.create_task(self._disk())
            try:
                await asyncio.gather(*(self._work(client) for client in range(self.clients)))
                await disk
                for name in NAMES:
                    await self._client(self.clients, [(name, "find"), (name, "read"), (name, "get")])
            finally:
                disk.cancel()
                self._machine.files.resume()
                if self._server is not None:
                    await self._server.stop()

    # --- the disk ---

    async def _disk(self) -> None:
        """Let each sync take a while, some fail, and some be the last before a loss of power."""
        choices = random.Random(f"disk {self.seed}")
        while self._busy:
            files = self._machine.files
            files.stall(folder="wal")
            await until(lambda: self._machine.files.stalled.is_set() or not self._busy)
            for _ in range(choices.choice(TURNS)):
                await asyncio.sleep(0)
            mood = choices.random()
            if mood < 0.1:
                files.fail_syncs()
            elif mood < 0.25:
                files.fail_writes()
            elif mood < 0.45:
                await self._lose_power(choices.randrange(1 << 30))
            files.resume()
            for _ in range(choices.choice(TURNS)):
                await asyncio.sleep(0)
            files.fail_syncs(0)
            files.fail_writes(0)

    async def _lose_power(self, seed: int) -> None:
        """Continue from what is on the disk at this instant; nobody hears anything of the server from now on."""
        server, old = self._server, self._machine.files
        self._started.clear()
        files = old.copy()
        for peer in self._peers:
            peer.cut()
        files.crash(seed)
        old.resume()
        assert server is not None
        await server.stop()
        self._machine = Machine(self.folder, QUIET, files)
        await self._start()

    async def _start(self) -> None:
        self._server = self._machine.server()
        await self._server.start()
        self._started.set()

    # --- the clients ---

    async def _work(self, client: int) -> None:
        choices = random.Random(f"client {client} of {self.seed}")
        kinds = [
            "create",
            "append",
            "append",
            "append",
            "append",
            "set",
            "set",
            "get",
            "find",
            "read",
            "seal",
            "delete",
        ]
        weights = [4, 6, 6, 6, 6, 5, 5, 2, 3, 3, 1, 1]
        chosen = choices.choices(kinds, weights, k=self.operations_per_client)
        plan = [(choices.choice(NAMES), kind) for kind in chosen]
        try:
            await self._client(client, plan)
        finally:
            self._busy -= 1

    async def _client(self, client: int, plan: list[tuple[str, str]]) -> None:
        choices = random.Random(f"calls of client {client} of {self.seed}")
        rest = iter(plan)
        todo = next(rest, None)
        while todo is not None:
            await self._started.wait()
            try:
                peer = await Peer.connect(self._server.address if self._server is not None else "")
            except (*LOST, RefusedError):
                await asyncio.sleep(0)
                continue
            self._peers.add(peer)
            lengths: dict[str, int] = {}
            attributes: dict[str, bytes | None] = {}
            try:
                while todo is not None:
                    name, kind = todo
                    call = self._call(name, kind, choices, lengths, attributes)
                    todo = next(rest, None)
                    await self._record(client, peer, name, call, lengths, attributes)
            except LOST:
                pass
            finally:
                self._peers.discard(peer)
                await peer.close()

    def _call(
        self,
        name: str,
        kind: str,
        choices: random.Random,
        lengths: dict[str, int],
        attributes: dict[str, bytes | None],
    ) -> tuple[Any, ...]:
        """Return a call; what it expects is what this client saw last, often enough."""
        token = b"<%04d>" % next(self._tokens)
        segment_id = self.segment_ids.get(name)
        if segment_id is None:
            return (choices.choice(("create", "find")),)
        match kind:
            case "create" | "find":
                return (kind,)
            case "append":
                expected = lengths.get(name, 0) if choices.random() < 0.7 else -1
                return (kind, segment_id, token, expected)
            case "set":
                return (kind, segment_id, attributes.get(name), None if choices.random() < 0.2 else token)
        return (kind, segment_id)

    async def _record(
        self,
        client: int,
        peer: Peer,
        name: str,
        call: tuple[Any, ...],
        lengths: dict[str, int],
        attributes: dict[str, bytes | None],
    ) -> None:
        """Carry out a call and record its answer, or that there was none."""
        called = next(self._time)
        answer: tuple[Any, ...] | None = None
        is_void = False
        try:
            answer = await CALLS[call[0]](peer, name, call)
        except RefusedError as error:
            is_void = error.code in RETRIED
            if error.code is not ErrorCode.OUTCOME_UNKNOWN and not is_void:
                answer = (_named(error.code),)
        except NotStoredError:
            is_void = True
        finally:
            if not is_void:
                self.histories[name].append(Operation(client, call, answer, called, next(self._time)))
        match answer:
            case ("created", segment_id) | ("found", segment_id, _, _):
                self.segment_ids[name] = segment_id
            case ("moved", length) | ("content", _, length):
                lengths[name] = length
            case ("stored", offset):
                lengths[name] = offset + len(call[2])
            case ("value", value):
                attributes[name] = value
            case ("set",):
                attributes[name] = call[3]
            case ("differs",):
                attributes.pop(name, None)
            case ("missing",) if len(call) > 1 and self.segment_ids.get(name) == call[1]:
                del self.segment_ids[name]


def _named(code: ErrorCode) -> str:
    """Return the answer of a code; of one that no specification knows, its name."""
    return ANSWERS.get(code, code.name)


async def _create(peer: Peer, name: str, call: tuple[Any, ...]) -> tuple[Any, ...]:
    return "created", await peer.create_segment(name)


async def _find(peer: Peer, name: str, call: tuple[Any, ...]) -> tuple[Any, ...]:
    info = await peer.ask(m.GetSegment(0, name), m.SegmentInfo)
    return "found", info.segment_id, info.length, bool(info.sealed)


async def _append(peer: Peer, name: str, call: tuple[Any, ...]) -> tuple[Any, ...] | None:
    _, segment_id, data, expected = call
    (request_id,) = await peer.append(segment_id, data, expected_offset=expected)
    (outcome,) = await peer.settled([request_id])
    if isinstance(outcome, Stored):
        return "stored", outcome.offset
    if outcome in RETRIED:
        raise NotStoredError
    if outcome is ErrorCode.OUTCOME_UNKNOWN:
        return None
    if outcome is ErrorCode.CONDITION_FAILED:
        return "moved", peer.errors[request_id].length
    return (_named(outcome),)


async def _set(peer: Peer, name: str, call: tuple[Any, ...]) -> tuple[Any, ...]:
    _, segment_id, expected, value = call
    await peer.ask(set_attribute(segment_id, "key", expected=expected, value=value), m.Attribute)
    return ("set",)


async def _get(peer: Peer, name: str, call: tuple[Any, ...]) -> tuple[Any, ...]:
    reply = await peer.ask(m.GetAttribute(call[1], "key"), m.Attribute)
    return "value", reply.value if reply.present else None


async def _seal(peer: Peer, name: str, call: tuple[Any, ...]) -> tuple[Any, ...]:
    await peer.ask(m.SealSegment(call[1]), m.SegmentInfo)
    return ("done",)


async def _delete(peer: Peer, name: str, call: tuple[Any, ...]) -> tuple[Any, ...]:
    await peer.ask(m.DeleteSegment(call[1]), m.Done)
    return ("done",)


async def _read(peer: Peer, name: str, call: tuple[Any, ...]) -> tuple[Any, ...]:
    data = await peer.read(call[1], 0)
    return "content", bytes(data.payload), data.length


CALLS: dict[str, Callable[[Peer, str, tuple[Any, ...]], Awaitable[tuple[Any, ...] | None]]] = {
    "create": _create,
    "find": _find,
    "append": _append,
    "set": _set,
    "get": _get,
    "seal": _seal,
    "delete": _delete,
    "read": _read,
}
