"""One container's part of a chunk storage: every name starts with a prefix, and no other chunk is visible.

So a search for orphans, a listing of copies or a delete cannot reach chunks of another container.
"""

from collections.abc import Sequence

from millrace.model.checksum import Buffer

from .storage import ChunkInfo, ChunkStorage, check_chunk_name, check_chunk_prefix


class ScopedStorage:
    """A `ChunkStorage` over the chunks of another one whose names start with a prefix.

    The prefix is added to names passed in and removed from names returned; errors name the chunk as the other storage
    has it.

    Args:
        storage: contains the chunks; `close` leaves it open, since other scopes use it.
        prefix: of whole folders, such as `c0003/`.
    """

    def __init__(self, storage: ChunkStorage, prefix: str) -> None:
        assert check_chunk_prefix(prefix).endswith("/"), "a prefix of whole folders: c1 would see c10"
        self._storage = storage
        self._prefix = prefix

    async def publish(self, name: str, pieces: Sequence[Buffer]) -> None:
        """Store a chunk durably, see `ChunkStorage`."""
        await self._storage.publish(self._prefix + check_chunk_name(name), pieces)

    async def read(self, name: str, *, offset: int, size: int) -> bytes:
        """Read a part of a chunk, see `ChunkStorage`."""
        return await self._storage.read(self._prefix + check_chunk_name(name), offset=offset, size=size)

    async def list(self, prefix: str = "") -> list[ChunkInfo]:
        """List the chunks of this scope by name, see `ChunkStorage`."""
        found = await self._storage.list(self._prefix + check_chunk_prefix(prefix))
        return [ChunkInfo(chunk.name.removeprefix(self._prefix), chunk.size) for chunk in found]

    async def delete(self, name: str) -> None:
        """Delete a chunk of this scope, see `ChunkStorage`."""
        await self._storage.delete(self._prefix + check_chunk_name(name))

    async def delete_temporary_files(self, prefix: str = "") -> int:
        """Delete the leftovers of a crash in this scope, see `ChunkStorage`."""
        return await self._storage.delete_temporary_files(self._prefix + check_chunk_prefix(prefix))

    async def close(self) -> None:
        """Do nothing: the other storage is closed by its owner."""
