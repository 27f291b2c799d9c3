"""The interface of an object store: S3 and compatible, Azure, Google Cloud, or one in memory.

What it must have is put-if-absent and compare-and-swap. Everything else that Millrace needs of a cluster is made of
these two (docs/decisions/0059).
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from millrace.model.checksum import Buffer


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object, as a listing tells it."""

    key: str
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A whole object."""

    content: bytes
    tag: str
    """The version of this content (its ETag): what `replace` compares. Equal contents may have equal tags."""


class ObjectStore(Protocol):
    """Objects under keys, below one prefix of one bucket.

    The contract, which `tests/contracts/test_object_store.py` holds against every implementation:

    1. An object appears whole or not at all, for every observer, and is durable when the call returns.
    2. `create` and `replace` are atomic: of any number at the same time, over any connections, exactly one succeeds.
    3. Reads and listings that begin after a call returned see what it did.
    4. StoreUnavailableError from `create`, `replace` or `delete` leaves the outcome open: it may have happened, and
       may still happen later, unless `changed_nothing`. All other errors mean that nothing was changed.
    5. Cancelling leaves the outcome open, too.
    6. Methods may be called concurrently, from one event loop. They never block it.
    """

    async def create(self, key: str, pieces: Sequence[Buffer]) -> str:
        """Store the concatenation of `pieces` under a key that has no object; return its tag.

        The pieces must not change until this returns, and, when it was cancelled, never.

        Raises:
            ObjectExistsError: the key has an object.
            StoreUnavailableError: the store does not answer, or asks to come back later; the outcome is open.
            StoreRefusedError: the store does not permit it.
        """
        ...

    async def replace(self, key: str, content: Buffer, *, tag: str) -> str:
        """Store `content` in place of the object that has this tag; return the new tag.

        Raises:
            ObjectChangedError: the object has another tag, or there is none.
            StoreUnavailableError, StoreRefusedError: as of `create`.
        """
        ...

    async def get(self, key: str) -> StoredObject:
        """Return a whole object.

        Raises:
            ObjectNotFoundError: there is none.
            StoreUnavailableError, StoreRefusedError: as of `create`.
        """
        ...

    async def read(self, key: str, *, offset: int, size: int) -> bytes:
        """Return bytes [offset, offset + size) of an object: fewer where it ends before, none from its end on.

        Raises:
            ObjectNotFoundError: there is none.
            StoreUnavailableError, StoreRefusedError: as of `create`.
        """
        ...

    async def size(self, key: str) -> int:
        """Return the size of an object in bytes.

        Raises:
            ObjectNotFoundError: there is none.
            StoreUnavailableError, StoreRefusedError: as of `create`.
        """
        ...

    def list(self, prefix: str = "", *, after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Yield the objects whose keys start with `prefix` and are greater than `after`, in pages, by key.

        Raises:
            StoreUnavailableError, StoreRefusedError: as of `create`.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing ones are a success.

        Raises:
            StoreUnavailableError: some may be deleted.
            StoreRefusedError: as of `create`.
        """
        ...

    async def close(self) -> None:
        """Release everything, after a moment for what is under way. Nothing may be called afterwards."""
        ...
