"""What is known of a producer, and what that means for its transactions.

A *producer* is an identity, its writer id, under which transactions are committed with sequences: each sequence once,
whoever sends it again, and however long ago it was committed. It is for callers whose sequence always means the same
content, such as the batches of a query.

    writer id   the identity, forever
    holder      who uses it: sequences mean something to one holder only. Another one is refused, until a reset
    run         one life of the holder; a new one fences the one before, which may still be somewhere
    sequence    ascending over all runs of a holder, gaps allowed

A run takes over when it begins its first transaction, also if that turns out to be committed already. A reset gives the
writer id to another holder, whose sequences start over; runs from before it stay fenced.
"""

from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final, NamedTuple

from .errors import InvalidArgumentError
from .limits import FINGERPRINT_SIZE_BYTES_MAX
from .names import checked_holder, checked_run, checked_writer_id
from .sequence_row import NO_SEQUENCE, SEQUENCE_MAX

FENCED_RUNS_COUNT_MAX: Final = 64
"""Of a producer: of older ones it is not known any more that they were replaced."""
NO_HOLDER: Final = ""
"""After a reset that names none: the next run of any holder takes over."""
NO_RUN: Final = ""


class Producer(NamedTuple):
    """As whom a transaction is committed.

    Attributes:
        writer_id: the identity; of producers alone, a writer may have the same.
        holder: who uses it, such as the id of a query.
        run: which life of the holder this is, such as an id that is made when the query starts.
        sequence: of the content of the transaction, from 0 on; such as the number of a batch.
    """

    writer_id: str
    holder: str
    run: str
    sequence: int


class ProducerVerdict(Enum):
    """What becomes of a transaction of a producer."""

    FENCED = auto()
    """Another run has replaced its run."""
    HELD = auto()
    """Another holder has the writer id."""
    STORED = auto()
    """Its sequence was committed, or a later one."""
    NEW = auto()
    """It may be committed."""


@dataclass(frozen=True, slots=True)
class ProducerRow:
    """The state of a producer; each method returns the state after an event.

    Attributes:
        number, writer_id: the same in each state.
        holder: empty if there is none.
        run: that took over last; empty if none has since the reset.
        last_sequence: the highest that the holder has committed; -1 if none.
        fenced: the runs that were replaced, the newest at the end.
        described_sequence: the sequence of the last commit with a fingerprint; -1 if none. It is above the last
            sequence until the record of that commit follows.
        described: the fingerprint of the content of that sequence.
    """

    holder: str = NO_HOLDER
    run: str = NO_RUN
    last_sequence: int = NO_SEQUENCE
    fenced: tuple[str, ...] = ()
    described_sequence: int = NO_SEQUENCE
    described: str = ""
    number: int = field(default=0, kw_only=True)
    writer_id: str = field(default="", kw_only=True)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the last sequence; empty if its commit had none."""
        return self.described if self.described_sequence == self.last_sequence != NO_SEQUENCE else ""

    @property
    def is_unused(self) -> bool:
        """Whether the producer can be forgotten: it has no committed sequence, no replaced run and no reset."""
        return self.last_sequence == NO_SEQUENCE and not self.fenced

    def at_begin(self, producer: Producer) -> ProducerVerdict:
        """Return what becomes of a transaction that begins; a run that is STORED or NEW takes over, if it has not."""
        if producer.run in self.fenced:
            return ProducerVerdict.FENCED
        if self.holder not in {NO_HOLDER, producer.holder}:
            return ProducerVerdict.HELD
        return ProducerVerdict.STORED if producer.sequence <= self.last_sequence else ProducerVerdict.NEW

    def at_commit(self, producer: Producer) -> ProducerVerdict:
        """Return what becomes of a transaction whose run has taken over when it began."""
        verdict = self.at_begin(producer)
        # However many runs ago that was.
        is_replaced = producer.run != self.run and verdict is not ProducerVerdict.HELD
        return ProducerVerdict.FENCED if is_replaced else verdict

    def taken(self, holder: str, run: str) -> "ProducerRow":
        """Return the row after a run took over; nothing changes if it has before."""
        row = self if self.holder in {NO_HOLDER, holder} else self.reset(holder)
        if row.run == run:
            return row
        return replace(row, holder=holder, run=run, fenced=_with_run(row.fenced, row.run))

    def with_fingerprint(self, sequence: int, fingerprint: str) -> "ProducerRow":
        """Return the row after the commit of a sequence was described, right before that commit."""
        return replace(self, described_sequence=sequence, described=fingerprint)

    def committed(self, sequence: int) -> "ProducerRow":
        """Return the row after a commit."""
        return replace(self, last_sequence=max(self.last_sequence, sequence))

    def reset(self, holder: str) -> "ProducerRow":
        """Return the row after the writer id was given to another holder, or to whoever comes next."""
        fenced = _with_run(self.fenced, self.run)
        return ProducerRow(number=self.number, writer_id=self.writer_id, holder=holder, fenced=fenced)


def checked_producer(producer: tuple[str, str, str, int]) -> Producer:
    """Return a producer if its parts are valid.

    Raises:
        InvalidNameError: the writer id, the holder or the run is not 1 to 255 bytes of printable text.
        InvalidArgumentError: the sequence is none, or it is no producer.
    """
    if not isinstance(producer, tuple) or len(producer) != len(Producer._fields):
        raise InvalidArgumentError(f"{producer!r} is no producer: give writer id, holder, run and sequence")
    writer_id, holder, run, sequence = producer
    if type(sequence) is not int or not 0 <= sequence <= SEQUENCE_MAX:
        raise InvalidArgumentError(f"the sequence of a producer is 0 to {SEQUENCE_MAX}, not {sequence!r}")
    return Producer(checked_writer_id(writer_id), checked_holder(holder), checked_run(run), sequence)


def checked_fingerprint(fingerprint: str) -> str:
    """Return the fingerprint of the content of a sequence if it is valid.

    Raises:
        InvalidArgumentError: it is not a text, or longer than 1,024 bytes.
    """
    if not isinstance(fingerprint, str):
        raise InvalidArgumentError(f"a fingerprint is a text, not {fingerprint!r:.120}")
    size_bytes = len(fingerprint.encode())
    if size_bytes > FINGERPRINT_SIZE_BYTES_MAX:
        raise InvalidArgumentError(
            f"a fingerprint has at most {FINGERPRINT_SIZE_BYTES_MAX} bytes, not {size_bytes}: commit a digest of it"
        )
    return fingerprint


def _with_run(fenced: tuple[str, ...], run: str) -> tuple[str, ...]:
    return fenced if run == NO_RUN else (*fenced, run)[-FENCED_RUNS_COUNT_MAX:]
