"""The interface of an object store: S3 and compatible, Azure, Google Cloud, or one in memory.

It requires put-if-absent and compare-and-swap. All other coordination of Millrace is built on these two
(docs/decisions/0059).
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from millrace.model.checksum import Buffer


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An entry of a listing."""

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

    The contract, which `tests/contracts/test_object_store.py` checks for every implementation:

    1. An object appears whole or not at all, for every observer, and is durable when the call returns. 2. `create` and
    `replace` are atomic: of any number of concurrent calls, over any connections, exactly one succeeds. 3. Reads and
    listings that begin after a call has returned see its effect. 4. StoreUnavailableError from `create`, `replace` or
    `delete` leaves the outcome open: the change may have happened, and may still happen later, unless
    `changed_nothing`. All other errors mean that nothing was changed. 5. Cancelling leaves the outcome open, too. 6.
    Methods may be called concurrently, from one event loop. They never block it.
    """

    async def create(self, key: str, pieces: Sequence[Buffer]) -> str:
        """Store the concatenation of `pieces` under a key that has no object; return its tag.

        The pieces must not change until this returns, and, if it was cancelled, never.

        Raises:
            ObjectExistsError: the key has an object.
            StoreUnavailableError: the store does not answer, or rate-limits; the outcome is open.
            StoreRefusedError: the store does not permit it.
        """
        ...

    async def replace(self, key: str, content: Buffer, *, tag: str) -> str:
        """Replace the object that has this tag by `content`; return the new tag.

        Raises:
            ObjectChangedError: the object has another tag, or is missing.
            StoreUnavailableError, StoreRefusedError: as for `create`.
        """
        ...

    async def get(self, key: str) -> StoredObject:
        """Return a whole object.

        Raises:
            ObjectNotFoundError: the object is missing.
            StoreUnavailableError, StoreRefusedError: as for `create`.
        """
        ...

    async def read(self, key: str, *, offset: int, size: int) -> bytes:
        """Return bytes [offset, offset + size) of an object: fewer if it ends before, none from its end on.

        Raises:
            ObjectNotFoundError: the object is missing.
            StoreUnavailableError, StoreRefusedError: as for `create`.
        """
        ...

    async def size(self, key: str) -> int:
        """Return the size of an object in bytes.

        Raises:
            ObjectNotFoundError: the object is missing.
            StoreUnavailableError, StoreRefusedError: as for `create`.
        """
        ...

    def list(self, prefix: str = "", *, after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Yield the objects whose keys start with `prefix` and are greater than `after`, in pages, by key.

        Raises:
            StoreUnavailableError, StoreRefusedError: as for `create`.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing ones are a success.

        Raises:
            StoreUnavailableError: some may be deleted.
            StoreRefusedError: as for `create`.
        """
        ...

    async def close(self) -> None:
        """Close the store, after a moment for requests under way. No method may be called afterwards."""
        ...
