"""What the model refuses, and the root of all that users of Millrace catch.

MillraceError                        the root; has `code` (number on the wire, or None) and `retriable`
+-- RequestError                     a request that was refused, by the server or before it was sent; has `facts`
|   +-- InvalidArgumentError         a request that can never succeed  (also a ValueError)
|       +-- InvalidNameError         a name outside the rule of names
|       +-- EventTooLargeError       an event or append above the limits
|       +-- CutInvalidError          a cut that does not fit its stream
+-- BlockCorruptError                bytes in a stream that are no event block  (also a ValueError)

The other refusals of the server are in `millrace.client.errors`, with the whole tree.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFacts:
    """What is known of a refusal.

    Attributes:
        subject: name or id of what the request was about.
        start_offset: first valid offset, or None where it does not apply.
        length: length of the segment, or None where it does not apply.
        retry_after_s: 0 where the server has no opinion.
    """

    message: str
    code: int | None = None
    retriable: bool = False
    subject: str = ""
    start_offset: int | None = None
    length: int | None = None
    retry_after_s: float = 0.0


class MillraceError(Exception):
    """Root of what the client raises."""

    @property
    def code(self) -> int | None:
        """Number of the error on the wire, or None for what never crosses it."""
        return None

    @property
    def retriable(self) -> bool:
        """Whether the same request may simply be made again, later."""
        return False


class RequestError(MillraceError):
    """A request that was refused: by the server, or before it was sent."""

    def __init__(self, facts: ErrorFacts | str) -> None:
        super().__init__(facts)
        self.facts = ErrorFacts(message=facts) if isinstance(facts, str) else facts

    def __str__(self) -> str:
        facts = self.facts
        parts = [f"{facts.subject}: {facts.message}" if facts.subject else facts.message]
        if facts.start_offset is not None:
            parts.append(f"start_offset={facts.start_offset}")
        if facts.length is not None:
            parts.append(f"length={facts.length}")
        if facts.retry_after_s:
            parts.append(f"retry_after_s={facts.retry_after_s:g}")
        return " ".join(parts)

    @property
    def code(self) -> int | None:
        """Number of the error on the wire."""
        return self.facts.code

    @property
    def retriable(self) -> bool:
        """What the server said."""
        return self.facts.retriable

    @property
    def subject(self) -> str:
        """Name or id of what the request was about."""
        return self.facts.subject

    @property
    def start_offset(self) -> int | None:
        """First valid offset of the segment, where the server named it."""
        return self.facts.start_offset

    @property
    def length(self) -> int | None:
        """Length of the segment, where the server named it."""
        return self.facts.length

    @property
    def retry_after_s(self) -> float:
        """When to try again; 0 where the server has no opinion."""
        return self.facts.retry_after_s


class InvalidArgumentError(RequestError, ValueError):
    """A request that can never succeed."""


class InvalidNameError(InvalidArgumentError):
    """A name outside the one rule of names."""


class EventTooLargeError(InvalidArgumentError):
    """An event or append above the limits."""


class CutInvalidError(InvalidArgumentError):
    """A cut that does not fit its stream."""


class BlockCorruptError(MillraceError, ValueError):
    """Bytes in a stream that are no event block."""
