"""Detects log files that are missing or emptied, by comparison with the log head.

Files missing at the end of a log leave no gap. So the files are compared with the newest file named in the log head
(see `log_head`); the first row that applies says what happened:

    the head is missing, but not the files   nothing of the log is lost, but its head is damaged
    no file, and the head is damaged         corrupt: the content of the log is unknown
    a newer file has batches                 nothing of the log is lost, but its head is damaged
    the newest file is missing               corrupt: its content is unknown
    another use of the newest file           the same
    it was emptied, or a file before it      the same, if no newer file has batches
"""

from collections.abc import Iterator, Sequence

from .log_head import NEWEST_NAME, FileUse, LogHead
from .logfile import log_file_name
from .report import Damage, FoundFile


def find_missing(found: Sequence[FoundFile], newest: LogHead, *, next_sequence: int) -> Iterator[Damage]:
    """Yield the damage that the log head proves, and mark the files concerned.

    Args:
        found: all files of the log, wholly read.
        newest: the content of the log head.
        next_sequence: the first sequence that no file has: the loss starts there.
    """
    named = newest.named
    last_number = max((file.number for file in found if file.last_sequence), default=0)
    if named is None:
        if found and (newest.slots or last_number):
            yield _wrong_name("the newest log file is not named")
        elif newest.slots:
            yield _lost_end(NEWEST_NAME, "all log files are missing", next_sequence)
        return
    if last_number > named.number:
        yield _wrong_name(f"file {named.number} is named as the newest, not file {last_number}")
        return
    if named.number not in [file.number for file in found]:
        yield _lost_end(log_file_name(named.number), "this file is missing, the newest of the log", next_sequence)
    for file in found:
        reason = _lost_content(file, named, last_number=last_number)
        if reason:
            file.is_damaged = True
            yield _lost_end(file.path.name, reason, next_sequence)


def missing_between(
    found: Sequence[FoundFile], one: FoundFile, other: FoundFile, *, lost: tuple[int, int]
) -> Damage | None:
    """Return the damage if files between two are missing that had these sequences, first and last; else None.

    A gap in the numbers alone proves nothing: a file that could not be prepared leaves its number unused.
    """
    there = {file.number for file in found}
    names = [log_file_name(number) for number in range(one.number + 1, other.number) if number not in there]
    if not names:
        return None
    first, last = lost
    others = f", and {len(names) - 1} more up to {names[-1]}" if len(names) > 1 else ""
    return Damage(
        place=names[0],
        offset=0,
        size=0,
        first_sequence=first,
        last_sequence=last,
        is_bounded=False,
        reason=f"this file is missing{others}, with batches {first} to {last}",
    )


def _wrong_name(reason: str) -> Damage:
    return Damage(
        place=NEWEST_NAME, offset=0, size=0, first_sequence=1, last_sequence=0, is_complete=True, reason=reason
    )


def _lost_end(place: str, reason: str, next_sequence: int) -> Damage:
    return Damage(
        place=place,
        offset=0,
        size=0,
        first_sequence=next_sequence,
        last_sequence=next_sequence,
        is_bounded=False,
        is_end=True,
        reason=reason,
    )


def _lost_content(file: FoundFile, named: FileUse, *, last_number: int) -> str:
    """Return why a file lacks batches, given that all files up to the named one were written; empty if it lacks none.

    Args:
        last_number: of the newest file that has batches. Missing content of an earlier file is reported as a gap in the
            sequences.
    """
    if file.number == named.number and file.salt not in (None, named.salt):
        return "the head names another use of this file"
    is_emptied = not file.last_sequence and (file.header is None or file.number < named.number)
    return "the batches of this file are missing" if is_emptied and last_number < file.number <= named.number else ""
