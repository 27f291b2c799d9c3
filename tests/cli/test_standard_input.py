import asyncio
import os
from pathlib import Path

import pytest

from millrace.cli.standard_input import StandardInput, input_name


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


def test_a_file_is_named_and_a_pipe_is_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reading, writing = os.pipe()
    with Path("orders.csv").open("w") as file:
        assert input_name(file.fileno()) in {"orders.csv", "standard input"}  # not every system names it
    assert input_name(reading) == "standard input"
    os.close(reading)
    os.close(writing)
