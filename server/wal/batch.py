"""Pure encoding and decoding of batches and file headers, with codecs derived from their declaration.

The format is declared in `millrace.wire.schema.log`. Nothing here reads a file, a clock or a random number.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final, NamedTuple

from millrace.model.checksum import crc32c
from millrace.wire.append_run import KIND_APPENDS, AppendRun, Sequences
from millrace.wire.codec import Codec, fixed_struct
from millrace.wire.errors import ChecksumError, CodecError
from millrace.wire.framing import decode_header, verify
from millrace.wire.limits import FRAME_HEADER_SIZE_BYTES, KIB
from millrace.wire.schema.log import (
    BATCH_ALIGNMENT_BYTES,
    BATCH_CHECKSUM_START,
    BATCH_MAGIC,
    LOG_FILE_FENCE,
    LOG_FILE_HEADER_BLOCK_BYTES,
    LOG_FILE_HEADER_SIZE_BYTES,
    LOG_FILE_MAGIC,
    LOG_FILE_RECYCLED,
    LOG_FILE_VERSION,
    TABLE_CHECKSUM_START,
    BatchHeader,
    LogFileHeader,
    RunEntry,
)

Buffer = bytes | bytearray | memoryview

_FILE_HEADER: Final = Codec(LogFileHeader, name="LogFileHeader")
_FILE_HEADER_CHECKSUM_END: Final = LOG_FILE_HEADER_SIZE_BYTES - 4
_HEADER: Final = fixed_struct(
    BatchHeader,
    name="BatchHeader",
    names="magic size checksum table_checksum sequence salt previous_checksum run_count wall_time_us reserved",
)
_ENTRY: Final = fixed_struct(
    RunEntry,
    name="RunEntry",
    names="segment_id offset frames_size frame_count frame_size event_count writer_number last_event_number "
    "writer_epoch kind reserved first_sequence last_sequence stored_below",
)
_HEADER_RESERVED: Final = bytes(16)
_ENTRY_RESERVED: Final = bytes(3)
_NOT_SEQUENCED: Final = (-1, -1, -1)
_CHECKSUM: Final = Struct("<L")

BATCH_HEADER_SIZE_BYTES: Final = _HEADER.size
RUN_ENTRY_SIZE_BYTES: Final = _ENTRY.size
BATCH_OVERHEAD_BYTES: Final = BATCH_HEADER_SIZE_BYTES + RUN_ENTRY_SIZE_BYTES + BATCH_ALIGNMENT_BYTES
"""The most that a run can cost beyond its frames: when it travels alone."""
SALT_OFFSET: Final = 24
"""Offset of the salt in a batch header; a search for batches searches for the salt."""

_JOINED_SIZE_BYTES_MAX: Final = 256 * KIB
"""Frames up to this size are copied into one piece (under 10 us), which saves a checksum call and an iovec for each."""
_PIECE_SIZE_BYTES_MIN: Final = 32 * KIB
"""Frames at least this large are never copied."""

assert BATCH_HEADER_SIZE_BYTES == 64
assert RUN_ENTRY_SIZE_BYTES == 80


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHeader:
    """The first block of a log file, or the first bytes of a log object."""

    version: int = LOG_FILE_VERSION
    recycled: bool = False
    is_fence: bool = False
    container_id: int
    server_id: uuid.UUID
    file_number: int
    salt: int
    sequence_floor: int


class EncodedBatch(NamedTuple):
    """A batch ready to be written."""

    pieces: list[Buffer]
    size: int
    checksum: int


@dataclass(slots=True)
class Batch:
    """A batch found in a file, with fields as stored; which checksums are verified depends on the decoder."""

    offset: int
    size: int
    checksum: int
    sequence: int
    salt: int
    previous_checksum: int
    run_count: int
    wall_time_us: int

    @property
    def end(self) -> int:
        """The offset of the next batch."""
        return aligned(self.offset + self.size)


def aligned(offset: int) -> int:
    """Return the first offset at or after `offset` where a batch may start."""
    return (offset + BATCH_ALIGNMENT_BYTES - 1) & -BATCH_ALIGNMENT_BYTES


def encode_file_header(header: FileHeader) -> bytes:
    """Return the whole first block of a file."""
    return encode_object_header(header).ljust(LOG_FILE_HEADER_BLOCK_BYTES, b"\0")


def encode_object_header(header: FileHeader) -> bytes:
    """Return the header alone, as an object begins with it."""
    flags = LOG_FILE_RECYCLED * header.recycled + LOG_FILE_FENCE * header.is_fence
    fields = (
        header.version,
        flags,
        header.container_id,
        header.server_id.bytes,
        header.file_number,
        header.salt,
        header.sequence_floor,
    )
    checksum = crc32c(_FILE_HEADER.pack(*fields, 0)[:_FILE_HEADER_CHECKSUM_END])
    return _FILE_HEADER.pack(*fields, checksum)


def decode_file_header(block: Buffer) -> FileHeader | None:
    """Decode the header of a file or an object; None if it is not valid (any more).

    The version is returned unchecked: magic and checksum have the same place in every version.
    """
    if len(block) < _FILE_HEADER_CHECKSUM_END + 4:
        return None
    magic, checksum = _CHECKSUM.unpack_from(block)[0], _CHECKSUM.unpack_from(block, _FILE_HEADER_CHECKSUM_END)[0]
    if magic != LOG_FILE_MAGIC or crc32c(memoryview(block)[:_FILE_HEADER_CHECKSUM_END]) != checksum:
        return None
    version, flags, container_id, server_id, file_number, salt, sequence_floor, _ = _FILE_HEADER.unpack(block)
    return FileHeader(
        version=version,
        recycled=bool(flags & LOG_FILE_RECYCLED),
        is_fence=bool(flags & LOG_FILE_FENCE),
        container_id=container_id,
        server_id=uuid.UUID(bytes=server_id),
        file_number=file_number,
        salt=salt,
        sequence_floor=sequence_floor,
    )


def encode_batch(
    runs: Sequence[AppendRun], *, sequence: int, salt: int, previous_checksum: int, wall_time_us: int
) -> EncodedBatch:
    """Build a batch. Large frames are not copied: the pieces refer to them."""
    count = len(runs)
    table_end = BATCH_HEADER_SIZE_BYTES + RUN_ENTRY_SIZE_BYTES * count
    head = bytearray(table_end)
    pack_into = _ENTRY.pack_into
    position = BATCH_HEADER_SIZE_BYTES
    frames: list[Buffer] = []
    frames_size = 0
    for run in runs:
        data = run.frames
        size = len(data)
        first_sequence, last_sequence, stored_below = run.sequences or _NOT_SEQUENCED
        pack_into(
            head, position,
            run.segment_id, run.offset, size, run.frame_count, run.frame_size, run.event_count,
            run.writer_number, run.last_event_number, run.writer_epoch, run.kind, _ENTRY_RESERVED,
            first_sequence, last_sequence, stored_below,
        )  # fmt: skip
        position += RUN_ENTRY_SIZE_BYTES
        frames.append(data)
        frames_size += size
    size = table_end + frames_size
    _HEADER.pack_into(
        head, 0, BATCH_MAGIC, size, 0, 0, sequence, salt, previous_checksum, count, wall_time_us, _HEADER_RESERVED
    )
    view = memoryview(head)
    _CHECKSUM.pack_into(head, BATCH_CHECKSUM_START, crc32c(view[TABLE_CHECKSUM_START:]))
    if frames_size <= _JOINED_SIZE_BYTES_MAX:
        whole = bytearray().join((head, *frames))
        checksum = crc32c(memoryview(whole)[BATCH_CHECKSUM_START:], size)
        _CHECKSUM.pack_into(whole, BATCH_CHECKSUM_START - 4, checksum)
        return EncodedBatch([whole], size, checksum)
    checksum = crc32c(view[BATCH_CHECKSUM_START:], size)
    pieces = _pieces(frames)
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    _CHECKSUM.pack_into(head, BATCH_CHECKSUM_START - 4, checksum)
    return EncodedBatch([head, *pieces], size, checksum)


def decode_batch(data: memoryview, offset: int, salt: int | None) -> Batch | None:
    """Return the batch that starts at `offset` if it is whole: magic, salt (unless None) and checksum are valid."""
    if offset + BATCH_HEADER_SIZE_BYTES > len(data):
        return None
    magic, size, checksum, _, sequence, found_salt, previous_checksum, run_count, wall_time_us, _ = _HEADER.unpack_from(
        data, offset
    )
    if (
        magic != BATCH_MAGIC
        or (found_salt != salt and salt is not None)
        or size < BATCH_HEADER_SIZE_BYTES + RUN_ENTRY_SIZE_BYTES * run_count
        or offset + size > len(data)
        or crc32c(data[offset + BATCH_CHECKSUM_START : offset + size], size) != checksum
    ):
        return None
    return Batch(offset, size, checksum, sequence, found_salt, previous_checksum, run_count, wall_time_us)


def decode_damaged_batch(data: memoryview, offset: int, salt: int | None) -> Batch | None:
    """Return the batch at `offset` if at least its run table is intact.

    The size is the sum from the table, and the checksum is computed from these bytes, which is the true one if the
    damage is in magic, size or checksum. The caller has to check for frames that extend past the end of `data`.
    """
    if offset + BATCH_HEADER_SIZE_BYTES > len(data):
        return None
    _, stored_size, stored, table_checksum, sequence, found_salt, previous_checksum, run_count, wall_time_us, _ = (
        _HEADER.unpack_from(data, offset)
    )
    table_end = offset + BATCH_HEADER_SIZE_BYTES + RUN_ENTRY_SIZE_BYTES * run_count
    if (found_salt != salt and salt is not None) or table_end > len(data):
        return None
    actual = crc32c(data[offset + TABLE_CHECKSUM_START : table_end])
    if actual != table_checksum:
        # If only the table checksum is damaged, the batch is whole with the right one.
        repaired = bytearray(data[offset : max(offset + stored_size, table_end)])
        _CHECKSUM.pack_into(repaired, BATCH_CHECKSUM_START, actual)
        batch = decode_batch(memoryview(repaired), 0, salt)
        return replace(batch, offset=offset) if batch is not None else None
    size = table_end - offset + sum(entry[2] for entry in _entries(data, offset, run_count))
    checksum = stored
    if offset + size <= len(data):
        checksum = crc32c(data[offset + BATCH_CHECKSUM_START : offset + size], size)
    return Batch(offset, size, checksum, sequence, found_salt, previous_checksum, run_count, wall_time_us)


def decode_runs(data: memoryview, batch: Batch) -> list[tuple[AppendRun, int]]:
    """Return the runs of a batch whose run table is intact, each with the size of its frames according to the table.

    Frames are views of `data`; they are shorter than that size only if a damaged batch extends past its end.
    """
    position = batch.offset + BATCH_HEADER_SIZE_BYTES + RUN_ENTRY_SIZE_BYTES * batch.run_count
    runs = []
    for entry in _entries(data, batch.offset, batch.run_count):
        (
            segment_id, offset, size, frame_count, frame_size, event_count, writer, last_event, epoch, kind, _,
            first_sequence, last_sequence, stored_below,
        ) = entry  # fmt: skip
        frames = data[position : position + size]
        position += size
        sequences = Sequences(first_sequence, last_sequence, stored_below) if first_sequence >= 0 else None
        run = AppendRun(
            segment_id, offset, frames, frame_count, frame_size, event_count, writer, last_event, epoch, kind, sequences
        )
        runs.append((run, size))
    return runs


def salvage_runs(data: memoryview, batch: Batch) -> tuple[list[AppendRun], tuple[tuple[int, int, int], ...]]:
    """Salvage every run whose frames all match their checksums from a damaged batch whose run table is intact.

    Returns:
        The salvaged runs, and for each other run its segment, its offset there, and its payload bytes.
    """
    intact: list[AppendRun] = []
    lost: list[tuple[int, int, int]] = []
    for run, size in decode_runs(data, batch):
        if len(run.frames) == size and is_run_intact(run):
            intact.append(run)
        else:
            headers_size = run.header_size * run.frame_count if run.kind == KIND_APPENDS else 0
            lost.append((run.segment_id, run.offset, size - headers_size))
    return intact, tuple(lost)


def is_run_intact(run: AppendRun) -> bool:
    """Return whether every frame of a run matches its own checksum. Walks all frames, so for damaged batches only."""
    frames = memoryview(run.frames)
    position = count = 0
    while position < len(frames):
        try:
            length = decode_header(frames, position).length
            if not FRAME_HEADER_SIZE_BYTES <= length <= len(frames) - position:
                return False
            verify(frames[position : position + length])
        except (CodecError, ChecksumError):
            return False
        position += length
        count += 1
    return count == run.frame_count


def _entries(data: memoryview, offset: int, run_count: int) -> Sequence[tuple[int, ...]]:
    start = offset + BATCH_HEADER_SIZE_BYTES
    return list(_ENTRY.iter_unpack(data[start : start + RUN_ENTRY_SIZE_BYTES * run_count]))


def _pieces(frames: Sequence[Buffer]) -> list[Buffer]:
    """Join neighbours that are small, so that a batch of thousands of runs stays within a few system calls."""
    pieces: list[Buffer] = []
    small: list[Buffer] = []
    for data in frames:
        if len(data) < _PIECE_SIZE_BYTES_MIN:
            small.append(data)
            continue
        if small:
            pieces.append(b"".join(small))
            small = []
        pieces.append(data)
    if small:
        pieces.append(b"".join(small))
    return pieces
