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
    """A published chunk, as `ChunkStorage.list` tells it."""

    name: str
    size: int
    """Bytes of the whole chunk, not of its payload."""


class ChunkStorage(Protocol):
    """A place for immutable chunks, each under its own name.

    The contract, which `tests/contracts/test_chunk_storage.py` holds against every implementation:

    1. A name follows one rule (`check_chunk_name`), checked here before it becomes a path or a key. Another one, or a
       prefix that no name can start with, raises InvalidArgumentError.
    2. Publishing is atomic: until `publish` returns, a chunk is either absent or whole, for every observer and after
       every crash. When it has returned, the chunk survives a loss of power.
    3. Publishing is idempotent: when a chunk of that name with the same bytes is there, it is made durable and that is
       a success; nothing is written again. Another one is never replaced, nor taken for it: ChunkExistsError.
    4. A failed publish leaves no chunk. NoSpaceError means that the storage is full and that trying again later is
       right; any other StorageError that the medium failed.
    5. A chunk never changes. Reads may run at the same time as everything else.
    6. Methods may be called concurrently, from one event loop. They never block it.
    7. Cancelling is safe everywhere: a cancelled publish or delete happens wholly or not at all.
    """

    async def publish(self, name: str, pieces: Sequence[Buffer]) -> None:
        """Store the concatenation of `pieces` durably under `name`.

        The pieces must not change until this returns, and, when it was cancelled, never.

        Raises:
            NoSpaceError: nothing was stored; try again later.
            ChunkExistsError: another chunk has that name.
            StorageError: nothing was stored; the medium failed.
        """
        ...

    async def read(self, name: str, *, offset: int, size: int) -> bytes:
        """Return bytes [offset, offset + size) of a chunk: fewer where it ends before, none from its end on.

        Raises:
            ChunkNotFoundError: there is no such chunk.
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
        """Delete what publishes of earlier processes have left under `prefix` when they died; return how many files.

        Only the one process that publishes under that prefix may call it. Its own publishes are left alone.

        Raises:
            StorageError: the medium failed.
        """
        ...

    async def close(self) -> None:
        """Wait for what is under way and release everything. Nothing may be called afterwards.

        One that is far away waits a moment only; what it cuts has happened wholly or not at all.
        """
        ...


def check_chunk_name(name: str) -> str:
    """Return `name` if it may name a chunk: components of `0-9 a-z _ -` joined by `/`, with the suffix `.chunk`.

    No component can be empty or start with a dot, so no name can leave its folder.

    Raises:
        InvalidArgumentError: it may not.
    """
    if len(name) > CHUNK_NAME_SIZE_MAX or not _NAME.fullmatch(name):
        raise InvalidArgumentError(f"not a name of a chunk: {name[:CHUNK_NAME_SIZE_MAX]!r}")
    return name


def check_chunk_prefix(prefix: str) -> str:
    """Return `prefix` if a name of a chunk can start with it (its suffix left aside).

    Raises:
        InvalidArgumentError: none can.
    """
    if len(prefix) > CHUNK_NAME_SIZE_MAX or not _PREFIX.fullmatch(prefix):
        raise InvalidArgumentError(f"not a prefix of names of chunks: {prefix[:CHUNK_NAME_SIZE_MAX]!r}")
    return prefix
