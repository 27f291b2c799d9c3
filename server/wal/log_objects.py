"""The objects of a log in an object store: their names and their bytes.

    log/00000007/0000000000012345     below the scope of the container: epoch 7, batch 12345

    0    64 bytes   header of a log file, without the zeros that fill its block; its file number is the epoch, and its
                    sequence floor the last batch that the writer had acknowledged when it made the object
    64   the rest   one batch, as in a file (`millrace.wire.schema.log`)

A **fence** is an object with such a name that consists of a header with the flag LOG_FILE_FENCE only. It ends its
epoch: batches of that epoch from its sequence on were never acknowledged, and never will be, because their writer
acknowledges in order, and this name is taken. Its sequence floor is the last batch of the epoch, and its salt 0, so
that every server puts the same bytes.

Names are never reused: each object is created once with put-if-absent, and stays unchanged until it is deleted. Fences
are never deleted, since a stalled writer may try the same name at any later time.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from millrace.server.errors import FolderVersionError
from millrace.wire.schema.log import LOG_FILE_HEADER_SIZE_BYTES, LOG_FILE_VERSION

from .batch import (
    Batch,
    Buffer,
    EncodedBatch,
    FileHeader,
    decode_batch,
    decode_damaged_batch,
    decode_file_header,
    encode_object_header,
)
from .report import LogOwner

LOG_PREFIX: Final = "log/"
"""Below the scope of a container."""
_NAME: Final = re.compile(r"(\d{8})/(\d{16})")


class LogPoint(NamedTuple):
    """The position of an object in a log."""

    epoch: int
    sequence: int

    @property
    def name(self) -> str:
        """The name of the object, below `LOG_PREFIX`."""
        return f"{self.epoch:08d}/{self.sequence:016d}"


def parse_log_name(name: str) -> LogPoint | None:
    """Parse the name of a log object; None if it is not one."""
    match = _NAME.fullmatch(name)
    return LogPoint(int(match[1]), int(match[2])) if match else None


def is_fence_size(size: int) -> bool:
    """Return whether an object of that size is a fence: an object with a batch is larger."""
    return size <= LOG_FILE_HEADER_SIZE_BYTES


@dataclass(frozen=True, slots=True)
class LogObject:
    """An object that was read.

    Attributes:
        data: all of it.
        header: None if it is damaged.
        batch: whole; None in a fence, or if it is damaged.
    """

    data: memoryview
    header: FileHeader | None
    batch: Batch | None

    @property
    def is_fence(self) -> bool:
        """Whether it ends its epoch."""
        return self.header is not None and self.header.is_fence

    @property
    def damaged_batch(self) -> Batch | None:
        """The batch if at least its run table is intact, else None."""
        return decode_damaged_batch(self.data, LOG_FILE_HEADER_SIZE_BYTES, None)


def encode_log_object(
    batch: EncodedBatch, point: LogPoint, *, owner: LogOwner, salt: int, acknowledged: int
) -> Sequence[Buffer]:
    """Return the pieces of an object with a batch.

    Args:
        salt: of the batch.
        acknowledged: the last sequence that the writer has acknowledged.
    """
    header = FileHeader(
        container_id=owner.container_id,
        server_id=owner.server_id,
        file_number=point.epoch,
        salt=salt,
        sequence_floor=acknowledged,
    )
    return [encode_object_header(header), *batch.pieces]


def encode_fence(point: LogPoint, *, owner: LogOwner) -> bytes:
    """Return the object that ends an epoch at a point."""
    return encode_object_header(
        FileHeader(
            is_fence=True,
            container_id=owner.container_id,
            server_id=owner.server_id,
            file_number=point.epoch,
            salt=0,
            sequence_floor=point.sequence - 1,
        )
    )


def decode_log_object(content: Buffer, point: LogPoint, *, owner: LogOwner | None, place: str) -> LogObject:
    """Decode an object as far as it is intact.

    Args:
        owner: the expected owner, None for any.
        place: its key, for errors.

    Raises:
        FolderVersionError: it was written by another version, or for another container or server.
    """
    data = memoryview(content)
    header = decode_file_header(data[:LOG_FILE_HEADER_SIZE_BYTES])
    if header is None:
        return LogObject(data, None, None)
    if header.version != LOG_FILE_VERSION:
        raise FolderVersionError(
            f"written in version {header.version}; this server reads version {LOG_FILE_VERSION}", subject=place
        )
    found = LogOwner(header.container_id, header.server_id)
    if owner is not None and found != owner:
        raise FolderVersionError(f"belongs to {found}, not to {owner}", subject=place)
    if header.file_number != point.epoch:
        return LogObject(data, None, None)
    if header.is_fence:
        return LogObject(data, header, None)
    batch = decode_batch(data, LOG_FILE_HEADER_SIZE_BYTES, header.salt)
    if batch is not None and batch.sequence != point.sequence:
        batch = None
    return LogObject(data, header, batch)
