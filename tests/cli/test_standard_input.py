import asyncio
import os

import pytest

from millrace.cli.standard_input import StandardInput


@pytest.mark.asyncio
async def test_pieces_come_as_they_are_written_and_the_end_is_empty() -> None:
    reading, writing = os.pipe()
    source = StandardInput(reading)
    for piece in (b"one", b"two"):
        os.write(writing, piece)
        assert await source.read() == piece
    os.close(writing)
    assert await source.read() == b""
    source.close()
    os.close(reading)


@pytest.mark.asyncio
async def test_what_cannot_be_read_is_raised() -> None:
    reading, writing = os.pipe()
    source = StandardInput(writing)
    with pytest.raises(OSError, match="descriptor"):
        await source.read()
    source.close()
    os.close(reading)
    os.close(writing)


@pytest.mark.asyncio
async def test_a_read_that_is_given_up_holds_up_nothing() -> None:
    reading, writing = os.pipe()
    source = StandardInput(reading)
    task = asyncio.ensure_future(source.read())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    os.close(writing)
    source.close()
    assert await StandardInput(reading).read() == b""
    os.close(reading)
