"""Receivers of the server's answers: the subjects that a connection passes to its session.

Each is called with its outcome inside the event loop, and must not raise.
"""

import asyncio
from typing import Any, Protocol

from millrace.client.errors import AnswerLostError
from millrace.model.errors import MillraceError, RequestError
from millrace.wire import messages as m
from millrace.wire.client_session import Piece


class SentAppend(Protocol):
    """An append in flight. Called with its outcome exactly once."""

    def acked(self, offset: int | None) -> None:
        """Record: durable; the first byte is at `offset`, None if it was a duplicate and its offset is unknown."""

    def failed(self, error: MillraceError) -> None:
        """Record: refused, or the connection lost."""


class Subscriber(Protocol):
    """Receives the data of a subscription."""

    def received(self, piece: Piece) -> None:
        """Process bytes of the segment, in order and without a gap."""

    def failed(self, error: MillraceError) -> None:
        """Record the end: the server ended the subscription or the connection was lost."""


class FutureReply:
    """A request: its reply is the result of a future."""

    __slots__ = ("future",)

    def __init__(self, future: "asyncio.Future[Any]") -> None:
        self.future = future

    def received(self, reply: m.Message | Piece) -> None:
        """Process the reply."""
        if not self.future.done():
            self.future.set_result(reply)

    def failed(self, error: MillraceError) -> None:
        """Process the rejection, or the loss of the connection."""
        if not self.future.done():
            self.future.set_exception(error)


class FutureAppend(FutureReply):
    """An append whose offset is the result of a future; None as in `SentAppend.acked`."""

    __slots__ = ()

    def acked(self, offset: int | None) -> None:
        """Set the offset."""
        if not self.future.done():
            self.future.set_result(offset)

    def failed(self, error: MillraceError) -> None:
        """Set the rejection; without one the outcome is unknown."""
        if not isinstance(error, RequestError):  # lost or closed, rather than answered
            unknown = AnswerLostError(f"{error}; the append was not acknowledged yet, and may have been stored")
            unknown.__cause__ = error
            error = unknown
        super().failed(error)
