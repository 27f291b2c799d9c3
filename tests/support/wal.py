"""A log on a file system in memory, with everything it handed back remembered."""

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from millrace.server.host.clock import Clock
from millrace.server.host.files import FileSystem
from millrace.server.wal import (
    NEWEST_NAME,
    Damage,
    LogOwner,
    RecoveredBatch,
    Recovery,
    Wal,
    WalOptions,
    log_paths,
    read_log_head,
)
from millrace.server.wal.batch import FileHeader, encode_batch, encode_file_header
from millrace.server.wal.log_head import FileUse, open_log_head
from millrace.server.wal.logfile import log_file_name
from millrace.wire.append_run import KIND_APPENDS, AppendRun
from millrace.wire.framing import encode_append_header, encode_body
from millrace.wire.limits import KIB
from tests.support.clock import ManualClock
from tests.support.files import MemoryFileSystem

FOLDER = Path("/data/wal")
OWNER = LogOwner(container_id=1, server_id=uuid.UUID(int=3))
# The smallest files there can be, so that a few appends fill one.
SMALL = WalOptions(
    spare_files=1,
    file_size_bytes=16 * KIB,
    files_max=4,
    batch_size_bytes_max=2 * KIB,
    run_size_bytes_max=4 * KIB,
    headroom_bytes=4 * KIB,
    retry_interval_s=0.01,
    # A disk that a test stalls must not hold up the loop of the test.
    lone_size_bytes_max=0,
)


def append_run(segment_id: int, offset: int, *payloads: bytes) -> AppendRun:
    """Return a run of appends."""
    frames = b"".join(
        encode_append_header(request_id=1, segment_id=segment_id, payload=payload) + payload for payload in payloads
    )
    sizes = {len(payload) + 64 for payload in payloads}
    return AppendRun(segment_id, offset, frames, len(payloads), sizes.pop() if len(sizes) == 1 else 0, len(payloads))


def control_run(body: bytes) -> AppendRun:
    """Return a run of one control record."""
    frame = encode_body(200, body, request_id=0)
    return AppendRun.of_record(frame)


def payload_of(run: AppendRun) -> bytes:
    """Return the payload of a run: of one frame, or of frames of one size."""
    header_size = 64 if run.kind == KIND_APPENDS else 24
    if run.frame_count == 1:
        return bytes(run.frames[header_size:])
    size = run.frame_size
    return b"".join(bytes(run.frames[start + header_size : start + size]) for start in range(0, len(run.frames), size))


@dataclass(slots=True)
class OpenLog:
    """A started `Wal` and what came of it. Appends to it are numbered by the offsets in their segment."""

    wal: Wal
    recovered: list[RecoveredBatch | Damage]
    durable: list[tuple[list[AppendRun], int, int]]
    failures: list[BaseException]
    # Length of each segment, submitted and recovered.
    lengths: dict[int, int] = field(default_factory=dict)
    # Sequences of the runs that were submitted here, by the id of the run.
    futures: "dict[int, asyncio.Future[int]]" = field(default_factory=dict)

    @property
    def batches(self) -> list[RecoveredBatch]:
        return [item for item in self.recovered if isinstance(item, RecoveredBatch)]

    @property
    def damages(self) -> list[Damage]:
        return [item for item in self.recovered if isinstance(item, Damage)]

    def contents(self) -> dict[int, list[tuple[int, bytes]]]:
        """Return what was recovered: (offset, payload) of each run, by segment."""
        return contents_of(self.batches)

    def submit(self, payload: bytes, *, segment_id: int = 7) -> "asyncio.Future[int]":
        """Submit one append and return a future of its sequence."""
        offset = self.lengths.get(segment_id, 0)
        future = self.submit_run(append_run(segment_id, offset, payload))
        self.lengths[segment_id] = offset + len(payload)
        return future

    def submit_run(self, run: AppendRun, *, is_followed: bool = False) -> "asyncio.Future[int]":
        """Submit a run and return a future of its sequence."""
        self.wal.submit(run, is_followed=is_followed)
        future = self.futures[id(run)] = asyncio.get_running_loop().create_future()
        return future

    async def start(self, *, after_sequence: int = 0) -> None:
        """Start the log, and remember what becomes of it."""
        await self.wal.start(
            on_durable=self._on_durable, on_failure=self.failures.append, after_sequence=after_sequence
        )

    def _on_durable(self, runs: list[AppendRun], sequence: int, wall_time_us: int) -> None:
        self.durable.append((runs, sequence, wall_time_us))
        for run in runs:
            future = self.futures.pop(id(run), None)
            if future is not None and not future.done():
                future.set_result(sequence)

    async def append(self, payload: bytes, *, segment_id: int = 7) -> int:
        """Append and wait for durability; return the sequence."""
        return await self.submit(payload, segment_id=segment_id)


def contents_of(batches: list[RecoveredBatch]) -> dict[int, list[tuple[int, bytes]]]:
    found: dict[int, list[tuple[int, bytes]]] = {}
    for batch in batches:
        for run in batch.runs:
            found.setdefault(run.segment_id, []).append((run.offset, payload_of(run)))
    return found


def create(files: FileSystem, options: WalOptions = SMALL, *, clock: Clock | None = None) -> OpenLog:
    """Return a `Wal` that is neither recovered nor started."""
    wal = Wal(files, FOLDER, options, clock=clock or ManualClock(), owner=OWNER)
    return OpenLog(wal, [], [], [])


async def open_log(
    files: FileSystem, options: WalOptions = SMALL, *, clock: Clock | None = None, from_sequence: int = 0
) -> OpenLog:
    """Recover and start."""
    log = create(files, options, clock=clock)
    log.recovered = list(log.wal.recover(from_sequence))
    for batch in log.batches:
        for run in batch.runs:
            log.lengths[run.segment_id] = run.offset + len(payload_of(run))
    await log.start()
    return log


async def open_and_close(files: MemoryFileSystem) -> OpenLog:
    """Recover, start and close."""
    log = await open_log(files)
    await log.wal.close()
    return log


def log_names(files: FileSystem) -> list[str]:
    """Return the names in the folder of the log, but for the small file that names the newest."""
    return [name for name in files.list_directory(FOLDER) if name != NEWEST_NAME]


@dataclass(slots=True)
class Placed:
    """A batch that `build_log` laid down."""

    path: Path
    offset: int
    size: int
    sequence: int
    runs: list[AppendRun]


def build_log(
    files: MemoryFileSystem,
    *layout: list[list[AppendRun]],
    salts: Sequence[int] = (),
    first_sequence: int = 1,
    remains: bytes = b"",
    is_recycled: bool = False,
) -> list[Placed]:
    """Lay a log down byte by byte: each item of `layout` is a file, a list of batches, each a list of runs.

    `remains` follow the last batch of each file, before its zeros. The last file with batches is named as the newest.
    """
    files.make_directories(FOLDER)
    placed: list[Placed] = []
    newest = None
    sequence, checksum = first_sequence, 0
    for number, batches in enumerate(layout, start=1):
        path = FOLDER / log_file_name(number)
        salt = salts[number - 1] if salts else 0x1000 + number
        header = FileHeader(
            recycled=is_recycled,
            container_id=OWNER.container_id,
            server_id=OWNER.server_id,
            file_number=number,
            salt=salt,
            sequence_floor=sequence - 1,
        )
        content = bytearray(encode_file_header(header))
        for runs in batches:
            batch = encode_batch(
                runs, sequence=sequence, salt=salt, previous_checksum=checksum, wall_time_us=1000 * sequence
            )
            placed.append(Placed(path, len(content), batch.size, sequence, runs))
            content += b"".join(batch.pieces)
            content += bytes(-len(content) % 8)
            sequence, checksum = sequence + 1, batch.checksum
        content += remains
        assert len(content) <= SMALL.file_size_bytes
        files.open(path, create=True).close()
        files.replace_content(path, bytes(content.ljust(SMALL.file_size_bytes, b"\0")))
        if batches or newest is None:
            newest = FileUse(number, salt)
    assert newest is not None
    open_log_head(files, FOLDER, newest).close()
    files.sync_directory(FOLDER)
    return placed


def recover(files: FileSystem, from_sequence: int = 0) -> tuple[list[RecoveredBatch | Damage], Recovery]:
    """Read the log back without touching it."""
    recovery = Recovery(files, log_paths(files, FOLDER), owner=OWNER, newest=read_log_head(files, FOLDER))
    return list(recovery.batches(from_sequence)), recovery
