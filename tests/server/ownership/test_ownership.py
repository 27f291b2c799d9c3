"""The right to change a container in a folder of its own."""

import pytest

from millrace.server.ownership import CopyRecord, FolderOwnership, Ownership

COPY = CopyRecord(name="copy", sequence=5, container_epoch=1, replay_from=4)


@pytest.mark.asyncio
async def test_in_a_folder_nothing_is_asked_of_anybody() -> None:
    ownership: Ownership = FolderOwnership(7)
    await ownership.record_copy(COPY)
    assert (ownership.copy, ownership.is_shared, ownership.is_stalled) == (None, False, False)
    assert await ownership.raise_epoch() == ownership.epoch == 8
    await ownership.release()
