"""Standard input for an event loop, whether it is a file, a pipe or a terminal.

An event loop cannot wait for a file, and reading in its executor would delay the end of the program until a line is
typed. So a thread reads, one piece at a time, on request; it is a daemon, and may be left in the middle of a read.
"""

import asyncio
import os
import stat
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from millrace.wire.limits import MIB

PIECE_BYTES_MAX: Final = 1 * MIB


def input_name(descriptor: int) -> str:
    """Return the path of the file that a descriptor reads, relative if it is below the working directory.

    Without a file, or on a system that does not name it, return "standard input".
    """
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return "standard input"
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        here = Path.cwd()
    except OSError:
        return "standard input"
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


class StandardInput:
    """Reads from a descriptor. Create it in the event loop that uses it, and close it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._asked: SimpleQueue[asyncio.Future[bytes] | None] = SimpleQueue()
        threading.Thread(target=self._serve, name="standard input", daemon=True).start()

    async def read(self) -> bytes:
        """Return the next available piece; empty at the end. A cancelled read may lose a piece.

        Raises:
            OSError: it cannot be read.
        """
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._asked.put(future)
        return await future

    def close(self) -> None:
        """End the thread after its current read."""
        self._asked.put(None)

    def _serve(self) -> None:
        while (future := self._asked.get()) is not None:
            data: bytes | OSError
            try:
                data = os.read(self._descriptor, PIECE_BYTES_MAX)
            except OSError as error:
                data = error
            try:
                self._loop.call_soon_threadsafe(_answer, future, data)
            except RuntimeError:
                return  # the loop is closed: nothing waits for the result


def _answer(future: "asyncio.Future[bytes]", data: bytes | OSError) -> None:
    if future.done():
        return
    if isinstance(data, OSError):
        future.set_exception(data)
    else:
        future.set_result(data)
