"""The right to change a container that others may take over, in memory: who claimed it last has it."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from millrace.server.errors import OwnerFencedError, StorageError
from millrace.server.ownership import CopyRecord, OwnershipStatistics, RemoteLog
from millrace.server.ownership.fields import CHECKSUM_NAME, encode_fields


def with_checksum(content: bytes) -> bytes:
    """Return an edited manifest, lease or claim of a folder as a server would have written it; other bytes as is."""
    try:
        edited = json.loads(content)
    except ValueError:
        return content
    edited.pop(CHECKSUM_NAME)
    return encode_fields(edited)


@dataclass
class Register:
    """What all owners of a container have in common, as the manifest of a real one."""

    epoch: int = 0
    copy: CopyRecord | None = None
    copy_before: CopyRecord | None = None
    owner: "MemoryOwnership | None" = None
    # All copies that ever counted, the oldest first.
    copies: list[CopyRecord] = field(default_factory=list)

    def claim(self, next_epoch: int) -> "MemoryOwnership":
        """Take the container from whom has it."""
        self.epoch = max(next_epoch, self.epoch + 1)
        self.owner = MemoryOwnership(self)
        return self.owner


class MemoryOwnership:
    """Fills the `Ownership` seam; it stands still, or cannot reach the register, when a test says so."""

    is_shared = True

    def __init__(self, register: Register) -> None:
        self._register = register
        self.epoch = register.epoch
        self.store = ""
        self.copy = register.copy
        self.copy_before = register.copy_before
        self.log: RemoteLog | None = None
        self.is_stalled = False
        self.is_lapsed = False
        self.is_away = False

    def copy_unusable(self, name: str) -> None:
        """Do nothing: tests that damage copies use a manifest."""

    def log_began(self, epoch_ends: Mapping[int, int], *, acknowledged: Callable[[], int]) -> None:
        """Take notice where the log begins, see `Ownership`."""

    async def record_copy(self, copy: CopyRecord) -> None:
        """Let a copy count, see `Ownership`."""
        await self._check()
        self.copy_before = self._register.copy_before = self.copy
        self.copy = self._register.copy = copy
        self._register.copies.append(copy)

    async def raise_epoch(self) -> int:
        """Take the next epoch, see `Ownership`."""
        await self._check()
        self._register.epoch += 1
        self.epoch = self._register.epoch
        return self.epoch

    def statistics(self) -> OwnershipStatistics:
        """Return how it is, see `Ownership`."""
        return OwnershipStatistics(epoch=self.epoch, is_stalled=self.is_stalled)

    async def release(self) -> None:
        """Give it up, see `Ownership`."""
        await self._check()
        self._register.owner = None

    async def _check(self) -> None:
        await asyncio.sleep(0)
        if self.is_away:
            raise StorageError("the register cannot be reached")
        if self._register.owner is not self:
            raise OwnerFencedError("container 0 was taken over by another server")
