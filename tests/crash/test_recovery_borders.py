"""A log damaged at every border of its structures: what is acknowledged is served, or its loss is named and contained.

The folder is that of a real server, with chunks, a checkpoint, and a log that holds what neither has. One server after
another is started on a copy in which something was cut, zeroed or flipped, and once more after that.
"""

import asyncio
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio

from millrace.server.app import Server
from millrace.server.wal.batch import BATCH_HEADER_SIZE_BYTES, RUN_ENTRY_SIZE_BYTES, decode_batch, decode_file_header
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.limits import APPEND_HEADER_SIZE_BYTES, FRAME_HEADER_SIZE_BYTES
from millrace.wire.schema.log import LOG_FILE_HEADER_BLOCK_BYTES
from tests.support.protocol import Peer, RefusedError
from tests.support.servers import QUIET, server_options

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
OPTIONS = replace(QUIET, chunk_size_bytes_small=0)
"""No chunk is ever replaced, so none may be missing."""
PIECE = 10
"""All appends are multiples of this, so that a piece is served or refused as a whole."""

Pieces = list[bytes | None]
"""What a segment serves; None for a piece that is refused as damaged."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A batch of the log: where it is, and the one range of a segment that it holds."""

    start: int
    end: int
    segment_id: int
    first: int
    last: int

    def holds(self, segment_id: int, offset: int) -> bool:
        return segment_id == self.segment_id and self.first <= offset < self.last


@dataclass(frozen=True, slots=True)
class Original:
    """An undamaged folder, what was acknowledged into it, and its log."""

    folder: Path
    contents: dict[int, bytes]
    log: Path
    data: bytes
    batches: list[Placed]


@pytest_asyncio.fixture
async def original() -> AsyncIterator[Original]:
    """Let a server write: first what goes to tier 2, then what stays in the log when it is killed."""
    # In memory and without debugging: hundreds of servers are started, and this is not about the disk.
    asyncio.get_running_loop().set_debug(False)
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        folder = Path(name) / "data"
        contents: dict[int, bytes] = {}
        async with (
            Server(server_options(folder, container=OPTIONS)) as server,
            await Peer.connect(server.address) as peer,
        ):
            for segment_name in ("raw/a", "raw/b", "raw/c"):
                segment_id = await peer.create_segment(segment_name)
                contents[segment_id] = segment_name.encode() * 20
                await peer.store(segment_id, contents[segment_id])
        killed = Path(name) / "killed"
        async with (
            Server(server_options(folder, container=OPTIONS)) as server,
            await Peer.connect(server.address) as peer,
        ):
            for number in range(3):
                for segment_id in contents:
                    pieces = [bytes([97 + number]) * 30, bytes([65 + number]) * 50]
                    await peer.store(segment_id, *pieces)
                    contents[segment_id] += b"".join(pieces)
            await asyncio.to_thread(shutil.copytree, folder, killed)
        for log in sorted((killed / "containers" / "0000" / "wal").glob("wal-*.log")):
            batches = list(_batches(log.read_bytes()))
            if batches:
                yield Original(killed, contents, log.relative_to(killed), log.read_bytes(), batches[-9:])
                break


def _batches(data: bytes) -> Iterator[Placed]:
    header = decode_file_header(data)
    assert header is not None
    offset = LOG_FILE_HEADER_BLOCK_BYTES
    while (batch := decode_batch(memoryview(data), offset, header.salt)) is not None:
        table = data[offset + BATCH_HEADER_SIZE_BYTES :]
        segment_id, first = int.from_bytes(table[:8], "little"), int.from_bytes(table[8:16], "little")
        size = batch.size - BATCH_HEADER_SIZE_BYTES - RUN_ENTRY_SIZE_BYTES - 2 * APPEND_HEADER_SIZE_BYTES
        yield Placed(offset, offset + batch.size, segment_id, first, first + size)
        offset = batch.end


def borders(data: bytes, batch: Placed) -> list[int]:
    """Return the first byte of every field of a batch of one run: header, run table, frame headers, payloads."""
    places = [batch.start + field for field in (0, 4, 8, 12, 16, 24, 32, 36, 40, 48)]
    table = batch.start + BATCH_HEADER_SIZE_BYTES
    places += [table + field for field in (0, 8, 16, 20, 24, 28, 32, 40, 48, 52, 53)]
    position = table + RUN_ENTRY_SIZE_BYTES
    while position < batch.end:
        length = int.from_bytes(data[position : position + 4], "little")
        places += [position + field for field in (0, 4, 8, 9, 12, 16, FRAME_HEADER_SIZE_BYTES, 32, 40, 48, 56)]
        places += [position + APPEND_HEADER_SIZE_BYTES, position + length - 1]
        position += length
    assert position == batch.end
    return places


def flip(data: bytes, place: int) -> bytes:
    damaged = bytearray(data)
    damaged[place] ^= 1 << place % 8
    return bytes(damaged)


def zero(data: bytes, place: int) -> bytes:
    return data[:place] + bytes(8) + data[place + 8 :]


def cut(data: bytes, place: int) -> bytes:
    return data[:place]


async def served(original: Original, data: bytes) -> list[dict[int, Pieces]]:
    """Return what two servers serve, one after the other, that are started on the folder with this log in it."""
    folder = original.folder.with_name("damaged")
    await asyncio.to_thread(shutil.copytree, original.folder, folder)
    try:
        (folder / original.log).write_bytes(data)
        chunks = {path.name for path in (folder / "tier2").rglob("c0000/segments/**/*.chunk")}
        found = []
        for _ in range(2):
            async with (
                Server(server_options(folder, container=OPTIONS)) as server,
                await Peer.connect(server.address) as peer,
            ):
                found.append({segment_id: await _pieces(peer, segment_id) for segment_id in original.contents})
        kept = {path.name for path in (folder / "tier2").rglob("c0000/segments/**/*.chunk")}
        assert chunks <= kept, "a chunk was deleted"
        return found
    finally:
        await asyncio.to_thread(shutil.rmtree, folder)


async def _pieces(peer: Peer, segment_id: int) -> Pieces:
    length = (await peer.info(segment_id)).length
    ids = [
        await peer.start(m.Read(segment_id=segment_id, offset=offset, size_max=PIECE, wait_ms=0))
        for offset in range(0, length, PIECE)
    ]
    pieces: Pieces = []
    for request_id in ids:
        try:
            pieces.append(bytes((await peer.reply(request_id, m.Data)).payload))
        except RefusedError as error:
            if error.code is not ErrorCode.SEGMENT_DAMAGED:
                raise
            pieces.append(None)
    return pieces


def check(original: Original, found: list[dict[int, Pieces]], *, may_lose: Callable[[int, int], bool]) -> None:
    """Check that what is served is what was written, and that all is served that may not be lost."""
    first, second = found
    assert first == second, "the second start serves something else"
    for segment_id, content in original.contents.items():
        pieces = first[segment_id]
        assert len(pieces) * PIECE <= len(content), "longer than what was written"
        for index in range(len(content) // PIECE):
            piece = pieces[index] if index < len(pieces) else None
            if piece is None:
                assert may_lose(segment_id, index * PIECE), f"segment {segment_id} lost {index * PIECE}"
            else:
                assert piece == content[index * PIECE : (index + 1) * PIECE], f"segment {segment_id} serves garbage"


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("damage", [flip, zero])
async def test_damage_inside_the_log_refuses_its_batch_and_nothing_else(
    original: Original, damage: Callable[[bytes, int], bytes]
) -> None:
    """Behaviour 41: a flipped bit in the middle of the log, in a length field: only that range refuses."""
    batch = original.batches[4]
    for place in borders(original.data, batch):
        data = damage(original.data, place)
        found = await served(original, data)
        check(original, found, may_lose=batch.holds)
        # A loss is named: what was written after it is at its place, so what is lost is refused, not cut off.
        assert len(found[0][batch.segment_id]) * PIECE == len(original.contents[batch.segment_id])


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("damage", [flip, cut])
async def test_damage_at_the_end_of_the_log_loses_the_end_alone(
    original: Original, damage: Callable[[bytes, int], bytes]
) -> None:
    """Behaviour 39: a log cut at any border of its last batch is a torn write; all before it is there."""
    batch = original.batches[-1]
    for place in borders(original.data, batch):
        found = await served(original, damage(original.data, place))
        check(original, found, may_lose=batch.holds)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_damaged_file_header_loses_nothing(original: Original) -> None:
    """Behaviour 41: the batches say themselves whose they are."""
    for place in (0, 4, 6, 8, 12, 28, 36, 44, 52, 60):
        check(original, await served(original, flip(original.data, place)), may_lose=lambda segment_id, offset: False)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_damage_anywhere_is_contained(original: Original) -> None:
    """Behaviours 39 and 41: any bit of the log."""
    seed = 4
    print(f"seed {seed}")
    choices = random.Random(seed)
    for _ in range(60):
        place = choices.randrange(original.batches[0].start, original.batches[-1].end)
        (hit,) = [batch for batch in original.batches if batch.start <= place < (batch.end + 7) // 8 * 8]
        check(original, await served(original, flip(original.data, place)), may_lose=hit.holds)
