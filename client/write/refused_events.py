"""Events that a writer for threads refused after its `write` had returned, until a caller sees the error.

`write` of the client for threads returns before the event loop looks at the event. If the loop refuses the event (it is
too large, or its sequence does not ascend), the future holds the error. A caller that asks the future has handled the
error. An error that no caller asked for is raised by `flush` and by leaving the writer.
"""

import threading
from concurrent.futures import Future
from typing import Final
from weakref import WeakSet

from .events import WriteResult

ERRORS_COUNT_MAX: Final = 100
"""So many errors are kept. Further events are counted, and only the last error of them is kept."""


class RefusedEvents:
    """The refused events of one writer whose errors no caller has seen. May be used in any thread.

    Attributes:
        count: how many they are.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors: dict[WriteFuture, Exception] = {}
        self._further: WeakSet[WriteFuture] = WeakSet()
        self._further_error: Exception | None = None
        self.count = 0

    def add(self, future: "WriteFuture", error: Exception) -> None:
        """Count an event that was refused; `future` holds the error."""
        with self._lock:
            self.count += 1
            if len(self._errors) < ERRORS_COUNT_MAX:
                self._errors[future] = error
            else:
                self._further.add(future)
                self._further_error = error

    def seen(self, future: "WriteFuture") -> None:
        """Forget an event: its error is handled. An event that is not counted any more changes nothing."""
        with self._lock:
            if self._errors.pop(future, None) is None:
                if future not in self._further:
                    return
                self._further.discard(future)
            self.count -= 1

    def take(self) -> Exception | None:
        """Return the first error that no caller has seen, and forget all of them; None if there is none."""
        with self._lock:
            error = next(iter(self._errors.values()), self._further_error) if self.count else None
            self._errors.clear()
            self._further.clear()
            self._further_error = None
            self.count = 0
            return error


class WriteFuture(Future[WriteResult]):
    """The outcome of one `write` of the client for threads.

    Attributes:
        refused: counts this event until its error is seen; None if the event was taken.
    """

    refused: RefusedEvents | None = None

    def refuse(self, error: Exception, refused: RefusedEvents) -> None:
        """Fail with the error of an event that was not taken, and count the event until the error is seen."""
        refused.add(self, error)
        self.refused = refused
        self.set_exception(error)

    def result(self, timeout: float | None = None) -> WriteResult:
        """Return where the event is stored, or raise its error; see `concurrent.futures.Future.result`."""
        self.exception(timeout)  # which sees the error
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error of the event; see `concurrent.futures.Future.exception`."""
        error = super().exception(timeout)
        if error is not None and self.refused is not None:
            self.refused.seen(self)
        return error
