"""Reading from a store that is far away, for a moment."""

from pathlib import Path

import pytest

from benchmarks.store_reader import CHUNK_SIZE_BYTES, StoreReaderOptions, fill, run_reader


@pytest.mark.asyncio
async def test_everything_is_read_once(tmp_path: Path) -> None:
    await fill(tmp_path, segments=2, size=2 * CHUNK_SIZE_BYTES)
    options = StoreReaderOptions(folder=str(tmp_path), at_once=2, latency_s=0.0, is_tuned=True)
    result = await run_reader(options)
    assert result.size_bytes == 4 * CHUNK_SIZE_BYTES
    # A footer and two GETs of 4 MiB for each chunk.
    assert result.gets == 4 * 3
