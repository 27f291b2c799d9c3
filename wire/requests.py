"""The open requests of a client, by request id.

The client numbers its requests from 1 on, in the order in which it sends them, and every reply carries the id of its
request. Most requests have one answer; a subscription has many, until it ends.

    open        sent; an answer is awaited
    -> closed   the answer arrived (`answer`), or an error in its place (`end`)
    -> closed   a subscription has ended, or its reader needs no more (`end`); answers in flight are then dropped

A request whose caller was cancelled stays open until its answer arrives, which its subject then ignores.
"""

from typing import Any


class OpenRequests:
    """The open requests of a client, each with its *subject*: an object of the caller, returned with the answer."""

    __slots__ = ("_last_id", "_lasting", "_single")

    def __init__(self) -> None:
        self._last_id = 0
        self._single: dict[int, Any] = {}
        self._lasting: dict[int, Any] = {}

    @property
    def count(self) -> int:
        """Requests that await their one answer."""
        return len(self._single)

    @property
    def lasting_count(self) -> int:
        """Subscriptions."""
        return len(self._lasting)

    def next_id(self) -> int:
        """Take the next request id."""
        self._last_id += 1
        return self._last_id

    def open(self, request_id: int, subject: Any, *, is_lasting: bool = False) -> None:
        """Await the answer of a request, or the answers of a lasting one."""
        (self._lasting if is_lasting else self._single)[request_id] = subject

    def is_open(self, request_id: int) -> bool:
        """Return whether an answer to this request may still arrive."""
        return request_id in self._single or request_id in self._lasting

    def is_single(self, request_id: int) -> bool:
        """Return whether this request awaits its one answer."""
        return request_id in self._single

    def answer(self, request_id: int) -> Any:
        """Return the subject of an answer, None if the request is not open; a lasting request stays open."""
        subject = self._lasting.get(request_id)
        return self._single.pop(request_id, None) if subject is None else subject

    def end(self, request_id: int) -> Any:
        """Return the subject of a request that has ended or is no longer needed, None if it is not open."""
        subject = self._lasting.pop(request_id, None)
        return self._single.pop(request_id, None) if subject is None else subject

    def clear(self) -> list[Any]:
        """Return the subjects of all, the oldest first, and forget them: the connection was lost."""
        subjects = [*self._single.values(), *self._lasting.values()]
        self._single.clear()
        self._lasting.clear()
        return subjects
