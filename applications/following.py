"""A reader that follows a stream in a thread of its own, while the program waits for what it tells."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final, Self

import millrace
from millrace import blocking

PATIENCE_S: Final = 300.0


class Follower(ABC):
    """Takes the events of a stream as they come, from its head on. A context manager, which begins and ends that.

    What `take` raises, or the reader, ends the following; it is raised where the program waits, or at the end.

    Args:
        patience_s: for so long at most the program waits.

    Attributes:
        client: connected from the beginning to the end; the reader is its reader.
        count: so many events were taken.
    """

    client: blocking.Client
    _reading: Future[None]

    def __init__(self, address: str, stream: str, *, patience_s: float = PATIENCE_S) -> None:
        self._address = address
        self._stream = stream
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._pool = ThreadPoolExecutor(1)
        self.count = 0

    def __enter__(self) -> Self:
        """Connect, and begin to read."""
        self.client = blocking.connect(self._address)
        self._reading = self._pool.submit(self._read)
        self._reading.add_done_callback(lambda _: self._tell(0))
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Read no more, and disconnect."""
        self.client.close()  # by which the reader ends in its thread
        self._pool.shutdown()
        if kind is None:
            with suppress(millrace.ClientClosedError):
                self._reading.result()

    @abstractmethod
    def take(self, event: millrace.Event, came_s: float) -> None:
        """Take an event, in the thread that reads.

        Args:
            came_s: when it came, by `time.perf_counter`.
        """

    def wait_for(self, count: int) -> None:
        """Wait until so many events were taken.

        Raises:
            SystemExit: they do not come in time, or the stream ends before.
        """
        self.wait_until(lambda: self.count >= count)

    def wait_until(self, is_there: Callable[[], bool]) -> None:
        """Wait until something is true, which an event that is taken makes true. Raises like `wait_for`."""
        with self._changed:
            self._changed.wait_for(lambda: self._reading.done() or is_there(), self._patience_s)
            is_true = is_there()
        if self._reading.done():
            self._reading.result()
        if not is_true:
            when = "until its end" if self._reading.done() else f"within {self._patience_s:g} s"
            raise SystemExit(f"no more than {self.count} events of {self._stream} came {when}")

    def _read(self) -> None:
        with self.client.reader(self._stream, start=millrace.HEAD) as reader:
            while events := reader.next_events():
                came_s = time.perf_counter()
                for event in events:
                    self.take(event, came_s)
                self._tell(len(events))

    def _tell(self, count: int) -> None:
        with self._changed:
            self.count += count
            self._changed.notify_all()
