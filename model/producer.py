"""Producers: their state, and its effect on their transactions.

A *producer* is an identity, its writer id, under which transactions are committed with sequences: each sequence at most
once, whoever resends it, and however long ago it was committed. It is for callers whose sequence always stands for the
same content, such as the batches of a query.

    writer id   the identity, forever
    holder      the program that uses it: sequences are those of one holder. Another one is rejected, until a reset
    run         one life of the holder; a new run fences older ones, which may still be running
    sequence    ascending over all runs of a holder, gaps allowed

A run takes over when it begins its first transaction, even if that turns out to be committed already. A reset assigns
the writer id to another holder, whose sequences start over; earlier runs stay fenced.
"""

from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final, NamedTuple

from .errors import InvalidArgumentError
from .limits import FINGERPRINT_SIZE_BYTES_MAX
from .names import checked_holder, checked_run, checked_writer_id
from .sequence_row import NO_SEQUENCE, SEQUENCE_MAX

FENCED_RUNS_COUNT_MAX: Final = 64
"""Replaced runs that are remembered for a producer; older ones are forgotten."""
NO_HOLDER: Final = ""
"""After a reset without a holder: the next run of any holder takes over."""
NO_RUN: Final = ""


class Producer(NamedTuple):
    """The producer of a transaction, with the sequence to commit.

    Attributes:
        writer_id: the identity; separate from writers, which may use the same id.
        holder: the program that uses it, such as the id of a query.
        run: the life of the holder, such as an id that is made when the query starts.
        sequence: of the content of the transaction, from 0 on; such as the number of a batch.
    """

    writer_id: str
    holder: str
    run: str
    sequence: int


class ProducerVerdict(Enum):
    """The decision about a transaction of a producer."""

    FENCED = auto()
    """Another run has replaced its run."""
    HELD = auto()
    """Another holder uses the writer id."""
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
        run: the newest run; empty if none has begun since the reset.
        last_sequence: the highest sequence that the holder has committed; -1 if none.
        fenced: the replaced runs, oldest first.
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
        """Return the decision about a transaction that begins; for STORED or NEW its run takes over."""
        if producer.run in self.fenced:
            return ProducerVerdict.FENCED
        if self.holder not in {NO_HOLDER, producer.holder}:
            return ProducerVerdict.HELD
        return ProducerVerdict.STORED if producer.sequence <= self.last_sequence else ProducerVerdict.NEW

    def at_commit(self, producer: Producer) -> ProducerVerdict:
        """Return the decision about the commit of a transaction whose run took over when it began."""
        verdict = self.at_begin(producer)
        # However many runs ago that was.
        is_replaced = producer.run != self.run and verdict is not ProducerVerdict.HELD
        return ProducerVerdict.FENCED if is_replaced else verdict

    def taken(self, holder: str, run: str) -> "ProducerRow":
        """Return the row after a run took over; unchanged if it had taken over before."""
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
        """Return the row after the writer id was assigned to another holder, or to the next one that begins."""
        fenced = _with_run(self.fenced, self.run)
        return ProducerRow(number=self.number, writer_id=self.writer_id, holder=holder, fenced=fenced)


def checked_producer(producer: tuple[str, str, str, int]) -> Producer:
    """Return a producer if its parts are valid.

    Raises:
        InvalidNameError: the writer id, the holder or the run is not 1 to 255 bytes of printable text.
        InvalidArgumentError: the sequence is invalid, or the argument is not a producer.
    """
    if not isinstance(producer, tuple) or len(producer) != len(Producer._fields):
        raise InvalidArgumentError(f"{producer!r} is not a producer: pass writer id, holder, run and sequence")
    writer_id, holder, run, sequence = producer
    if type(sequence) is not int or not 0 <= sequence <= SEQUENCE_MAX:
        raise InvalidArgumentError(f"the sequence of a producer must be 0 to {SEQUENCE_MAX}, not {sequence!r}")
    return Producer(checked_writer_id(writer_id), checked_holder(holder), checked_run(run), sequence)


def checked_fingerprint(fingerprint: str) -> str:
    """Return the fingerprint of the content of a sequence if it is valid.

    Raises:
        InvalidArgumentError: it is not a text, or longer than 1,024 bytes.
    """
    if not isinstance(fingerprint, str):
        raise InvalidArgumentError(f"a fingerprint must be a text, not {fingerprint!r:.120}")
    size_bytes = len(fingerprint.encode())
    if size_bytes > FINGERPRINT_SIZE_BYTES_MAX:
        raise InvalidArgumentError(
            f"a fingerprint may have at most {FINGERPRINT_SIZE_BYTES_MAX} bytes, not {size_bytes}: commit a digest of"
            f" it"
        )
    return fingerprint


def _with_run(fenced: tuple[str, ...], run: str) -> tuple[str, ...]:
    return fenced if run == NO_RUN else (*fenced, run)[-FENCED_RUNS_COUNT_MAX:]
