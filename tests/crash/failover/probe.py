"""A client that writes one event after the other, and remembers when each was acknowledged."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from millrace import OutcomeUnknownError, Writer
from millrace.client.client import Client
from tests.support.history import Recorder

NAME: Final = "probe"
PAUSE_S: Final = 0.01


@dataclass
class Probe:
    """Writes to a stream as one writer, until it is told to end; the history knows of each event.

    Attributes:
        silence_s: the longest time from one ack to the next; who measures it sets it to 0 first.
    """

    client: Client
    recorder: Recorder
    stream: str
    silence_s: float = 0.0
    _began_s: float = 0.0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _is_over: bool = False

    async def run(self) -> None:
        """Write until it is over."""
        acked_s, number = time.monotonic(), 0
        while not self._is_over:
            # One whose segment was truncated away while it waited for a server: nothing says what became of the event.
            with suppress(OutcomeUnknownError):
                async with self.client.writer(self.stream, writer_id=NAME) as writer:
                    while not self._is_over:
                        number += 1
                        await self._write(writer, f"{NAME}:{number}")
                        before_s, acked_s = acked_s, time.monotonic()
                        self.silence_s = max(self.silence_s, acked_s - before_s)
                        await asyncio.sleep(PAUSE_S)

    async def _write(self, writer: Writer, event: str) -> None:
        """Write an event, and tell who waits when it is acknowledged."""
        began_s = time.monotonic()
        call = self.recorder.call(NAME, "write", stream=self.stream, writer=NAME, events=[event], keys=[NAME])
        await writer.write(event.encode(), key=NAME)
        self.recorder.answer(call, "stored")
        async with self._changed:
            self._began_s = began_s
            self._changed.notify_all()

    async def next_ack(self, since_s: float, *, within_s: float) -> float:
        """Wait for the first ack of an event that was written after a moment; return how long after it the ack came.

        Raises:
            AssertionError: it took too long.
        """
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + within_s), self._changed:
                await self._changed.wait_for(lambda: self._began_s >= since_s)
        except TimeoutError:
            raise AssertionError(f"nothing was acknowledged for {within_s:g} s") from None
        return time.monotonic() - since_s

    def end(self) -> None:
        """Let it end after the event that it is at."""
        self._is_over = True
