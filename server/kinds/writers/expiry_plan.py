"""Plans the expiry of writers that were idle for longer than their kind allows.

What a writer costs is small, but it is kept for every writer that ever was, in each segment where it wrote; writers
without a name cannot even come back once their process has ended. So idle ones are deleted:

    unnamed     forgotten: nothing is left of it
    named       marked: its event numbers are deleted; that they are, and under which epoch, is kept, so that a writer
                which opens the name gets an error, and does not start from 1 without noticing
    mark        forgotten after the same time again, unless it is among the newest ones, of which a fixed number stays

A writer that is busy (an append or an open of it is on its way through the log) is left alone, however long it was
silent: it is about to be seen.

Age is counted in uptime (see `uptime`): a writer is stamped with the one that was recorded last when it was seen.
"""

from collections.abc import Container, Iterable
from typing import Final, NamedTuple

from millrace.server.container.state.writer import Writer

from .options import WritersOptions

STEPS_PER_IDLE_TIME: Final = 16
"""Into so many steps the shorter idle time is cut; that is how much too late, about, a writer expires."""


class Borders(NamedTuple):
    """Uptimes: named writers, unnamed ones, and marks that were seen last before these have expired."""

    named_us: int
    unnamed_us: int
    marks_us: int


class ExpiryPlan(NamedTuple):
    """Numbers of writers that leave a mark, and of writers and marks that leave nothing."""

    marked: tuple[int, ...]
    forgotten: tuple[int, ...]


def step_us(options: WritersOptions) -> int:
    """Return how much uptime passes between two records at most, in microseconds."""
    return min(options.named_idle_s, options.unnamed_idle_s) * 1_000_000 // STEPS_PER_IDLE_TIME


def borders(options: WritersOptions, *, uptime_us: int, marks_kept_from_us: int) -> Borders:
    """Return the borders at an uptime. A stamp may be a step too old, so one step more has to pass.

    Args:
        marks_kept_from_us: the uptime when the oldest of the marks was made that are kept whatever their age.
    """
    latest_us = uptime_us - step_us(options)
    named_us = latest_us - options.named_idle_s * 1_000_000
    return Borders(
        named_us=named_us,
        unnamed_us=latest_us - options.unnamed_idle_s * 1_000_000,
        marks_us=min(named_us, marks_kept_from_us),
    )


def decide(writers: Iterable[Writer], limits: Borders, *, busy: Container[int]) -> ExpiryPlan:
    """Return who of some writers and marks expires now; the `busy` ones, by number, have appends on their way."""
    marked = []
    forgotten = []
    for writer in writers:
        border_us = limits.unnamed_us
        if writer.writer_id:
            border_us = limits.marks_us if writer.row.expired_us else limits.named_us
        is_busy = writer.writer_number in busy or writer.admitted != writer.durable
        if is_busy or writer.seen_uptime_us >= border_us:
            continue
        if writer.writer_id and not writer.row.expired_us:
            marked.append(writer.writer_number)
        else:
            forgotten.append(writer.writer_number)
    return ExpiryPlan(tuple(marked), tuple(forgotten))
