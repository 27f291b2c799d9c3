"""The interface of tier 2: the storage of chunks."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from millrace.model.checksum import Buffer
from millrace.server.errors import InvalidArgumentError

CHUNK_SUFFIX: Final = ".chunk"
CHUNK_NAME_SIZE_MAX: Final = 200

_COMPONENT: Final = r"[0-9a-z][0-9a-z_-]*"
_NAME: Final = re.compile(rf"(?:{_COMPONENT}/)*{_COMPONENT}{re.escape(CHUNK_SUFFIX)}", re.ASCII)
_PREFIX: Final = re.compile(rf"(?:{_COMPONENT}/)*(?:{_COMPONENT})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ChunkInfo:
    """A published chunk, as listed by `ChunkStorage.list`."""

    name: str
    size: int
    """Bytes of the whole chunk, not of its payload."""


class ChunkStorage(Protocol):
    """Storage of immutable chunks, each under its own name.

    The contract, which `tests/contracts/test_chunk_storage.py` checks for every implementation:

    1. All names follow one rule (`check_chunk_name`), checked here before a name becomes a path or a key. An invalid
    name, or a prefix that no name can start with, raises InvalidArgumentError. 2. Publishing is atomic: until `publish`
    returns, a chunk is either absent or whole, for every observer and after every crash. When it has returned, the
    chunk survives a power loss. 3. Publishing is idempotent: if a chunk of that name with the same bytes exists, it is
    made durable and the call succeeds; nothing is written again. A different chunk is never replaced, nor accepted as
    this one: ChunkExistsError. 4. A failed publish leaves no chunk. NoSpaceError means that the storage is full and a
    later retry is right; any other StorageError that the medium failed. 5. A chunk never changes. Reads may run at the
    same time as everything else. 6. Methods may be called concurrently, from one event loop. They never block it. 7.
    Cancelling is safe everywhere: a cancelled publish or delete happens wholly or not at all.
    """

    async def publish(self, name: str, pieces: Sequence[Buffer]) -> None:
        """Store the concatenation of `pieces` durably under `name`.

        The pieces must not change until this returns, and, if it was cancelled, never.

        Raises:
            NoSpaceError: nothing was stored; try again later.
            ChunkExistsError: another chunk has that name.
            StorageError: nothing was stored; the medium failed.
        """
        ...

    async def read(self, name: str, *, offset: int, size: int) -> bytes:
        """Return bytes [offset, offset + size) of a chunk: fewer if it ends before, none from its end on.

        Raises:
            ChunkNotFoundError: the chunk does not exist.
            StorageError: the medium failed.
        """
        ...

    async def list(self, prefix: str = "") -> list[ChunkInfo]:
        """Return the published chunks whose names start with `prefix`, by name.

        Raises:
            StorageError: the medium failed.
        """
        ...

    async def delete(self, name: str) -> None:
        """Delete a chunk; a missing one is a success.

        After a loss of power soon after, the chunk may exist again. No checkpoint refers to it then: it is an orphan.

        Raises:
            StorageError: the medium failed.
        """
        ...

    async def delete_temporary_files(self, prefix: str = "") -> int:
        """Delete temporary files under `prefix` that processes left when they died; return how many files.

        Only the one process that publishes under that prefix may call it. Its own publishes are left alone.

        Raises:
            StorageError: the medium failed.
        """
        ...

    async def close(self) -> None:
        """Wait for operations in progress and release everything. No method may be called afterwards.

        A remote storage waits only a moment; an interrupted operation has happened wholly or not at all.
        """
        ...


def check_chunk_name(name: str) -> str:
    """Return `name` if it is a valid chunk name: components of `0-9 a-z _ -` joined by `/`, with the suffix `.chunk`.

    No component can be empty or start with a dot, so no name can leave its folder.

    Raises:
        InvalidArgumentError: it is invalid.
    """
    if len(name) > CHUNK_NAME_SIZE_MAX or not _NAME.fullmatch(name):
        raise InvalidArgumentError(f"not a name of a chunk: {name[:CHUNK_NAME_SIZE_MAX]!r}")
    return name


def check_chunk_prefix(prefix: str) -> str:
    """Return `prefix` if a chunk name can start with it (its suffix left aside).

    Raises:
        InvalidArgumentError: it is invalid.
    """
    if len(prefix) > CHUNK_NAME_SIZE_MAX or not _PREFIX.fullmatch(prefix):
        raise InvalidArgumentError(f"not a prefix of names of chunks: {prefix[:CHUNK_NAME_SIZE_MAX]!r}")
    return prefix
