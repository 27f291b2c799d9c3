"""The exclusive writer of a stream: while a stream has one, it accepts events from no other writer."""

from typing import NamedTuple


class ExclusiveWriter(NamedTuple):
    """The exclusive writer of a stream, under the epoch that it was opened under for it.

    Attributes:
        writer_id: empty for a writer without one.
        since_us: when it was opened for the stream, Unix microseconds.
    """

    number: int
    epoch: int
    writer_id: str
    since_us: int

    def __str__(self) -> str:
        name = f"writer {self.writer_id!r}" if self.writer_id else "a writer without an id"
        return f"{name} (number {self.number}, epoch {self.epoch})"
