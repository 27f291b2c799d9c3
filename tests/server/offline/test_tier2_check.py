from pathlib import Path

import pytest

from millrace.server.errors import ServerError, StoreRefusedError, StoreUnavailableError
from millrace.server.offline.container import OfflineContainer
from millrace.server.offline.tier2_check import check_chunk
from millrace.server.tier2 import ChunkId, ChunkInfo, chunk_name
from tests.support.storage import MemoryStorage


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [StoreUnavailableError("no answer"), StoreRefusedError("no right")], ids=repr)
async def test_a_store_that_does_not_answer_is_not_told_as_damage(tmp_path: Path, error: ServerError) -> None:
    class Away(MemoryStorage):
        async def read(self, name: str, *, offset: int, size: int) -> bytes:
            raise error

    chunk = ChunkInfo(chunk_name(ChunkId(segment_id=5, start_offset=0, length=9, container_epoch=1)), 9000)
    with pytest.raises(type(error)):
        await anext(check_chunk(OfflineContainer(tmp_path / "0000"), Away(), chunk))
