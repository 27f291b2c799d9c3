"""Which writers expire: those of which nothing was seen for longer than their kind may be idle.

What a writer costs is small, but it is kept for every writer that ever was, in each segment where it wrote; writers
without a name cannot even come back once their process is gone. So idle ones are let go:

    unnamed     forgotten: nothing is left of it
    named       marked: its event numbers are gone; that they are, and under which epoch, is kept, so that whoever opens
                the name is told and does not start from nothing unawares
    mark        forgotten after the same time again

A writer that is busy (an append or an open of it is on its way through the log) is left alone, however long it was
silent: it is about to be seen. How old a stamp is, the caller finds out; see `timeline`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterFacts:
    """What is known of a writer, or of the mark of one.

    Attributes:
        active_us: the stamp of its last durable append or open.
        expired_us: of a mark, when the writer expired; 0 for a writer.
    """

    writer_number: int
    is_named: bool
    is_busy: bool
    active_us: int
    expired_us: int


class ExpiryPlan(NamedTuple):
    """Numbers of writers that leave a mark, and of writers and marks that leave nothing."""

    marked: tuple[int, ...]
    forgotten: tuple[int, ...]


def decide(writers: Iterable[WriterFacts], *, named_before_us: int, unnamed_before_us: int) -> ExpiryPlan:
    """Return who expires now. What was stamped before the two stamps was idle for too long, by kind."""
    marked = []
    forgotten = []
    for writer in writers:
        if writer.is_busy:
            continue
        if writer.expired_us:
            if writer.expired_us < named_before_us:
                forgotten.append(writer.writer_number)
        elif writer.is_named:
            if writer.active_us < named_before_us:
                marked.append(writer.writer_number)
        elif writer.active_us < unnamed_before_us:
            forgotten.append(writer.writer_number)
    return ExpiryPlan(tuple(marked), tuple(forgotten))
