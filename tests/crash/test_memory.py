"""Attacks on the memory of a real server: what it takes is bounded, and is given back when the peers have left.

Most budgets are small, so that an attack is worth many times its budget and takes moments. Attacks of large pieces are
also made on the budgets that a server has by default.
"""

import asyncio
import select
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import psutil
import pytest

from millrace.model.limits import APPEND_SIZE_BYTES_MAX
from millrace.server.container.options import ContainerOptions
from millrace.server.front.options import FrontOptions
from millrace.wire import messages as m
from millrace.wire.framing import encode
from millrace.wire.limits import KIB, MIB
from tests.crash.processes import ServerProcess
from tests.support.protocol import Peer, append_frame, hello, read_request, set_attribute
from tests.support.waiting import until

SLACK_BYTES = 64 * MIB
BACK_WITHIN_S = 60.0
FRONT, CONTAINER = FrontOptions(), ContainerOptions()
SETTINGS = {
    "MILLRACE_CACHE_BUDGET_BYTES": str(16 * MIB),
    "MILLRACE_CONTAINER_FLUSH_AGE_S": "0.2",
    "MILLRACE_CONTAINER_FLUSH_SIZE_BYTES": str(1 * MIB),
    "MILLRACE_CONTAINER_CHECKPOINT_INTERVAL_S": "0.2",
    "MILLRACE_CONTAINER_TAIL_SIZE_BYTES_HIGH": str(16 * MIB),
    "MILLRACE_CONTAINER_TAIL_SIZE_BYTES_LOW": str(8 * MIB),
}


class Watched:
    """A server process, and the most memory that it was seen to have."""

    def __init__(self, process: ServerProcess) -> None:
        self.address = process.address
        self._process = psutil.Process(process.process.pid)
        self.most_bytes = 0

    def resident_bytes(self) -> int:
        resident: int = self._process.memory_info().rss
        self.most_bytes = max(self.most_bytes, resident)
        return resident

    async def watch(self) -> None:
        while True:
            self.resident_bytes()
            await asyncio.sleep(0.05)


@asynccontextmanager
async def watched(folder: Path, **settings: str) -> AsyncIterator[Watched]:
    """Start a server, and watch it."""
    process = await ServerProcess.start(folder, environment={**SETTINGS, **settings}, log_level="INFO")
    server = Watched(process)
    watching = asyncio.create_task(server.watch())
    try:
        yield server
    finally:
        watching.cancel()
        await process.kill()
        print(process.said)


async def written(peer: Peer, name: str, size: int) -> int:
    segment_id = await peer.create_segment(name)
    for number in range(size // MIB):
        await peer.store(segment_id, bytes([number % 256]) * MIB)
    return segment_id


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("way", "budget", "count"),
    [
        ("subscriptions", 32 * MIB, 60),
        ("subscriptions", FRONT.reader_bytes_max, 250),
        ("reads", 32 * MIB, 60),
        ("reads", FRONT.reader_bytes_max, 250),
        ("one byte of each page", 32 * MIB, 60),
    ],
)
async def test_readers_that_take_nothing(tmp_path: Path, way: str, budget: int, count: int) -> None:
    """Behaviour 86: a bound on cold reads that are not taken; an honest reader gets all meanwhile."""
    async with watched(tmp_path / "data", MILLRACE_FRONT_READER_BYTES_MAX=str(budget)) as server:
        async with await Peer.connect(server.address) as peer:
            segment_id = await written(peer, "raw/a", 128 * MIB)
            await peer.read_all(segment_id)
            base = server.resident_bytes()
            server.most_bytes = 0
            with ExitStack() as sockets:
                attack = [hello()]
                # A connection carries out 256 at once at most: more of the small ones would only take time.
                for number in range(1, 300 if way == "one byte of each page" else 1000):
                    match way:
                        case "subscriptions":
                            offset = (number * 7 * MIB) % (100 * MIB)
                            frame: m.Message = m.Subscribe(segment_id, offset, 1 << 30)
                        case "reads":
                            frame = read_request(segment_id, (number * 7 * MIB) % (100 * MIB), size_max=8 * MIB)
                        case _:
                            frame = read_request(segment_id, number * MIB % (128 * MIB), size_max=1)
                    attack.append(encode(frame, request_id=number))
                data = b"".join(attack[:30] if way == "subscriptions" else attack)
                host, _, port = server.address.rpartition(":")

                def connect() -> None:
                    for _ in range(count):
                        sock = sockets.enter_context(socket.socket())
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                        sock.connect((host, int(port)))
                        sock.sendall(data)

                await asyncio.to_thread(connect)
                async with await Peer.connect(server.address) as honest:
                    for _ in range(2):
                        assert len(await honest.read_all(segment_id)) == 128 * MIB
                most = server.most_bytes
        print(f"base {base >> 20} MiB, most {most >> 20} MiB")
        assert most <= base + budget + SLACK_BYTES
        await until(lambda: server.resident_bytes() <= base + SLACK_BYTES, within_s=BACK_WITHIN_S)


def send_what_goes(address: str, data: bytes, *, sockets: ExitStack, count: int) -> None:
    """Connect so many times and send as much of the same to each as it takes, until none takes more."""
    host, _, port = address.rpartition(":")
    unsent = {}
    for _ in range(count):
        sock = sockets.enter_context(socket.socket())
        sock.connect((host, int(port)))
        sock.setblocking(False)
        unsent[sock] = memoryview(data)
    while unsent and (ready := select.select([], unsent, [], 2.0)[1]):
        for sock in ready:
            try:
                unsent[sock] = unsent[sock][sock.send(unsent[sock]) :]
            except ConnectionError:
                unsent[sock] = memoryview(b"")
            if not unsent[sock]:
                del unsent[sock]


LARGEST_PAYLOAD = bytes(APPEND_SIZE_BYTES_MAX)
EMPTY_CUTS = m.SaveCuts("tests/none", [m.NamedCut(0, "", [])] * 65_535)


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("way", "budget"),
    [
        ("frames that never end", 64 * MIB),
        ("frames that never end", FRONT.request_bytes_max),
        ("requests of many small things", 64 * MIB),
    ],
)
async def test_large_requests(tmp_path: Path, way: str, budget: int) -> None:
    """Behaviour 86: what is received and carried out is bounded; small requests go on meanwhile."""
    async with watched(tmp_path / "data", MILLRACE_FRONT_REQUEST_BYTES_MAX=str(budget)) as server:
        async with await Peer.connect(server.address) as honest:
            segment_id = await honest.create_segment("raw/a")
            base = server.resident_bytes()
            server.most_bytes = 0
            if way == "frames that never end":
                count, attack = 60, hello() + append_frame(segment_id, LARGEST_PAYLOAD, request_id=1)[:-1]
            else:
                count = 20
                attack = hello() + b"".join(encode(EMPTY_CUTS, request_id=number) for number in range(1, 9))
            with ExitStack() as sockets:
                sending = asyncio.create_task(
                    asyncio.to_thread(send_what_goes, server.address, attack, sockets=sockets, count=count)
                )
                while not sending.done():
                    await honest.store(segment_id, bytes(KIB))
                    await honest.info(segment_id)
                await sending
                for _ in range(20):
                    await honest.store(segment_id, bytes(KIB))
                most = server.most_bytes
        print(f"base {base >> 20} MiB, most {most >> 20} MiB")
        assert most <= base + budget + SLACK_BYTES
        await until(lambda: server.resident_bytes() <= base + SLACK_BYTES, within_s=BACK_WITHIN_S)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_appends_of_one_byte(tmp_path: Path) -> None:
    """Behaviour 86: what waits for tier 2 counts with the objects around it, not by its bytes alone."""
    high = int(SETTINGS["MILLRACE_CONTAINER_TAIL_SIZE_BYTES_HIGH"])
    async with watched(tmp_path / "data", MILLRACE_CONTAINER_FLUSH_AGE_S="3600") as server:
        async with await Peer.connect(server.address) as peer:
            ids = [await peer.create_segment(f"raw/{number}") for number in range(50)]
            base = server.resident_bytes()
            server.most_bytes = 0
            # Each is a run of its own, for the next one is to another segment.
            frames = [append_frame(ids[number % 50], b"x", request_id=1 + number) for number in range(25_000)]
            with ExitStack() as sockets:
                data = hello() + b"".join(frames)
                await asyncio.to_thread(send_what_goes, server.address, data, sockets=sockets, count=10)
                # What the kernel took, the server has yet to receive: until it is full, or has all of it.
                async with await Peer.connect(server.address) as last:
                    while not last.throttles and (await peer.info(ids[1])).length < 10 * 25_000 // 50:
                        await last.append(ids[0], b"x")
                        await last.keep_next()
                most = max(server.most_bytes, server.resident_bytes())
        print(f"base {base >> 20} MiB, most {most >> 20} MiB")
        assert most <= base + high + SLACK_BYTES
        await until(lambda: server.resident_bytes() <= base + SLACK_BYTES, within_s=BACK_WITHIN_S)


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("total", "idle", "count"),
    [(32 * MIB, 8 * MIB, 200), (CONTAINER.attributes_bytes_max, CONTAINER.idle_bytes_max, 400)],
)
async def test_attributes(tmp_path: Path, total: int, idle: int, count: int) -> None:
    """Behaviour 86: attributes are bounded, and those of idle segments are on disk."""
    async with watched(
        tmp_path / "data",
        MILLRACE_CONTAINER_ATTRIBUTES_BYTES_MAX=str(total),
        MILLRACE_CONTAINER_IDLE_BYTES_MAX=str(idle),
    ) as server:
        async with await Peer.connect(server.address) as peer:
            await peer.create_segment("raw/first")
            base = server.resident_bytes()
            server.most_bytes = 0
            refused = 0
            for number in range(count):
                segment_id = await peer.create_segment(f"raw/{number}")
                ids = [
                    await peer.start(set_attribute(segment_id, f"k{each}", expected=None, value=bytes(64 * KIB - 300)))
                    for each in range(15)
                ]
                while not all(request_id in peer.replies for request_id in ids):
                    await peer.keep_next()
                refused += sum(isinstance(peer.replies.pop(request_id), m.ErrorReply) for request_id in ids)
            most = server.most_bytes
        print(f"base {base >> 20} MiB, most {most >> 20} MiB, refused {refused}")
        assert refused > 1500
        assert most <= base + total + SLACK_BYTES
        await until(lambda: server.resident_bytes() <= base + idle + SLACK_BYTES, within_s=BACK_WITHIN_S)


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize(("idle", "count"), [(8 * MIB, 200), (CONTAINER.idle_bytes_max, 250)])
async def test_idle_entities(tmp_path: Path, idle: int, count: int) -> None:
    """Behaviour 86: they are counted in bytes, not in numbers: few large ones are many small ones."""
    async with watched(tmp_path / "data", MILLRACE_CONTAINER_IDLE_BYTES_MAX=str(idle)) as server:
        async with await Peer.connect(server.address) as peer:
            await peer.create_segment("raw/first")
            ids = []
            base = server.resident_bytes()
            for number in range(count):
                ids.append(await peer.create_segment(f"raw/{number}"))
                for each in range(15):
                    await peer.ask(
                        set_attribute(ids[-1], f"k{each}", expected=None, value=bytes(64 * KIB - 300)), m.Attribute
                    )
            for segment_id in ids:
                await peer.ask(m.GetAttribute(segment_id, "k1"), m.Attribute)
        print(f"base {base >> 20} MiB, now {server.resident_bytes() >> 20} MiB")
        await until(lambda: server.resident_bytes() <= base + idle + SLACK_BYTES, within_s=BACK_WITHIN_S)
