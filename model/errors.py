"""The errors of the model, and the base class of all errors that users of Millrace catch.

MillraceError                        the root; has `code` (number on the wire, or None) and `retriable` +-- RequestError
a request that was rejected, by the server or before it was sent; has `facts` |   +-- InvalidArgumentError         a
request that can never succeed  (also a ValueError) |       +-- InvalidNameError         an invalid name |       +--
EventTooLargeError       an event or append above the limits |       +-- CutInvalidError          a cut that does not
fit its stream |           +-- CutOrderError        a start that is after the end +-- MissingExtraError                a
feature whose packages are not installed  (also an ImportError) +-- BlockCorruptError                bytes in a stream
that are not an event block  (also a ValueError)

The other errors of the server are in `millrace.client.errors`, with the whole tree.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFacts:
    """The facts of a rejection.

    Attributes:
        retriable: according to the server; None if the server did not tell, so that the class decides.
        subject: name or id of the request's subject.
        start_offset: first valid offset, or None if not applicable.
        start_index: first valid event of the block at `start_offset`.
        length: length of the segment, or None if not applicable.
        retry_after_s: 0 if the server has no preference.
    """

    message: str
    code: int | None = None
    retriable: bool | None = None
    subject: str = ""
    start_offset: int | None = None
    start_index: int = 0
    length: int | None = None
    retry_after_s: float = 0.0


class MillraceError(Exception):
    """The base class of all errors of the client.

    All of them can be pickled and copied, with all attributes.

    Attributes:
        code: number of the error in the protocol; None if it comes from the client itself.
        retriable: whether the same call may be made again, later: nothing is done twice by that, and it may succeed
            then. The client makes such calls again by itself, within its time limits. So your program gets such an
            error only when a limit was reached.
    """

    code: int | None = None
    retriable: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the parts for pickle and copy, with the attributes and the cause, which `BaseException` omits."""
        reduced: tuple[Any, ...] = super().__reduce__()  # type: ignore[assignment]  # a tuple for errors, never a text
        made_by, arguments = reduced[:2]
        cause = self.__cause__
        kept = {"__cause__": cause} if isinstance(cause, MillraceError | OSError) else {}
        return made_by, arguments, {**self.__dict__, **kept}


class RequestError(MillraceError):
    """A request was refused, by the server or before it was sent. It has attributes such as `subject` and `length`."""

    def __init__(self, facts: ErrorFacts | str) -> None:
        super().__init__(facts)
        self.facts = ErrorFacts(message=facts) if isinstance(facts, str) else facts
        self.code = self.facts.code
        if self.facts.retriable is not None:
            self.retriable = self.facts.retriable
        self.subject = self.facts.subject
        self.start_offset = self.facts.start_offset
        self.start_index = self.facts.start_index
        self.length = self.facts.length
        self.retry_after_s = self.facts.retry_after_s

    def __str__(self) -> str:
        parts = [f"{self.subject}: {self.facts.message}" if self.subject else self.facts.message]
        if self.start_offset is not None:
            parts.append(f"start_offset={self.start_offset}")
        if self.start_index:
            parts.append(f"start_index={self.start_index}")
        if self.length is not None:
            parts.append(f"length={self.length}")
        if self.retry_after_s:
            parts.append(f"retry_after_s={self.retry_after_s:g}")
        return " ".join(parts)


class InvalidArgumentError(RequestError, ValueError):
    """The request can never succeed: the text says what is wrong, and what would be right. Nothing was done."""


class InvalidNameError(InvalidArgumentError):
    """A name is not allowed; the text says which part of it. Nothing was done."""


class EventTooLargeError(InvalidArgumentError):
    """An event or an append is too large. It was not taken, and the writer remains usable."""


class CutInvalidError(InvalidArgumentError):
    """A cut does not fit its stream: for example, it names segments of another one."""


class CutOrderError(CutInvalidError):
    """The start is after the end in at least one segment."""


class MissingExtraError(MillraceError, ImportError):
    """This feature needs packages that are not installed.

    Attributes:
        package: the first one that is missing.
        extra: what to install: the distribution with its extra.
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(package, extra)
        self.package = package
        self.extra = extra

    def __str__(self) -> str:
        return f"{self.package} is not installed; install it with: pip install '{self.extra}'"


class BlockCorruptError(MillraceError, ValueError):
    """A stream contains bytes that are not events, or damaged ones; the text says where.

    They were not written by a writer but, for example, by a raw append, or are damaged. Read on after them, or read
    the bytes with `client.segments`.
    """
