"""Progress of one writer on one stream, by the sequences of its events.

The row itself is `millrace.model.sequence_row`: each block raises what is stored and nothing lowers it; scaling and
truncating the stream leave it alone. It is forgotten with the writer, or with the stream. There are two views of it, as
there are of a segment: the *admitted* one decides about new blocks, the *durable* one is told to those who open the
writer, and is what a checkpoint stores.

A block must begin above the lowest sequence that is stored in the range of its segment. One that does not shows that
what is stored there is taken for more than it is, or that one sequence was given to two events. To continue would be to
lose events at the next start of the writer, without a word. So the refusal is recorded, and the writer cannot store
anything on the stream, nor be opened for it, until an operator or the caller says where it stands: `reset`.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from millrace.model.sequence_row import SequenceRow
from millrace.server.errors import (
    InvalidArgumentError,
    SequencesMixedError,
    SequencesRefusedError,
    ThrottledError,
)
from millrace.wire.append_run import Sequences

from .segment import Segment

PIECES_COUNT_MAX: Final = 4096
"""A row with more pieces takes blocks only that let it shrink."""
RETRY_AFTER_MS: Final = 200


class SequenceRefusal(NamedTuple):
    """A block that was refused: its segment, its first sequence, and what was stored in the range of the segment."""

    segment_id: int
    first_sequence: int
    stored_through: int

    def error(self, subject: str) -> SequencesRefusedError:
        """Return the error that tells it, about the writer `subject`."""
        return SequencesRefusedError(
            f"sequence {self.first_sequence} was sent to segment {self.segment_id}, where everything up to"
            f" {self.stored_through} is stored: a sequence was used twice, or the writer has a fault; find out what is"
            " stored by reading the stream, then reset the sequences of the writer",
            subject=subject,
        )


@dataclass(slots=True, eq=False)
class SequenceView:
    """One of the two views.

    Attributes:
        is_plain: whether events without sequences were stored; then none with sequences are.
        refusal: of a block of this writer, None if none was refused since the last reset.
    """

    row: SequenceRow = field(default_factory=SequenceRow)
    is_plain: bool = False
    refusal: SequenceRefusal | None = None

    def copy(self) -> "SequenceView":
        """Return a view that changes on its own."""
        return SequenceView(self.row.copy(), self.is_plain, self.refusal)

    def store(self, segment: Segment, sequences: Sequences) -> None:
        """Record a block; one for a segment without keys, whose stream damage has made unknown, is left aside."""
        if segment.keys is not None:
            self.row.store(segment.keys, last=sequences.last, stored_below=sequences.stored_below)

    def reset(self, stored_through: int) -> None:
        """Resume after a sequence."""
        self.row = SequenceRow(stored_through)
        self.refusal = None


class StreamProgress:
    """How far one writer is on one stream; see the module docstring."""

    __slots__ = ("admitted", "durable", "stream_id")

    def __init__(self, stream_id: int, durable: SequenceView | None = None) -> None:
        self.stream_id = stream_id
        self.durable = durable or SequenceView()
        self.admitted = self.durable.copy()

    def admit(self, segment: Segment, sequences: Sequences | None) -> None:
        """Record a block that was admitted."""
        if sequences is None:
            self.admitted.is_plain = True
        else:
            self.admitted.store(segment, sequences)

    def admit_as_durable(self) -> None:
        """Let the admitted view be the durable one: nothing is queued."""
        self.admitted = self.durable.copy()


def check_plain(progress: StreamProgress, *, subject: str) -> None:
    """Raise SequencesMixedError if events without sequences may not follow what the writer has stored."""
    if not progress.admitted.is_plain and not progress.admitted.row.is_empty:
        raise SequencesMixedError(
            "the events of this writer on the stream have sequences: these must have sequences too", subject=subject
        )


def check_sequenced(progress: StreamProgress | None, segment: Segment, *, subject: str) -> StreamProgress:
    """Return the progress of a writer that may store events with sequences in a segment.

    Raises:
        SequencesMixedError: it was not opened for the stream, or has stored events without sequences.
        SequencesRefusedError: a block of it was refused.
    """
    if progress is None or segment.keys is None:
        raise SequencesMixedError(
            "sequences are for a named writer that was opened for the stream which it writes to", subject=subject
        )
    if progress.admitted.is_plain:
        raise SequencesMixedError(
            "the events of this writer on the stream have no sequences: these must have none either", subject=subject
        )
    if progress.admitted.refusal is not None:
        raise progress.admitted.refusal.error(subject)
    return progress


def refusal_of(progress: StreamProgress, segment: Segment, sequences: Sequences) -> SequenceRefusal | None:
    """Return why a block may not be stored, None if it may: it has to begin above what is stored in its range."""
    assert segment.keys is not None
    lowest = progress.admitted.row.lowest_in(segment.keys)
    return SequenceRefusal(segment.segment_id, sequences.first, lowest) if sequences.first <= lowest else None


def check_piece_count(progress: StreamProgress, sequences: Sequences, *, subject: str) -> None:
    """Raise ThrottledError if the row is too large, unless storing the block lets it shrink."""
    row = progress.admitted.row
    if row.piece_count <= PIECES_COUNT_MAX or sequences.first <= sequences.stored_below:
        return
    row.join()
    if row.piece_count > PIECES_COUNT_MAX:
        raise ThrottledError(
            f"what this writer has stored on the stream is in {row.piece_count} pieces of the keys; it is to send the"
            f" events from sequence {sequences.stored_below} on first",
            subject=subject,
            retry_after_ms=RETRY_AFTER_MS,
        )


def check_told(progress: StreamProgress | None, stored_below: int, *, subject: str) -> SequenceView:
    """Return the admitted view of a writer that says that everything below a sequence is stored.

    Raises:
        SequencesMixedError: it was not opened for the stream.
        SequencesRefusedError: a block of it was refused.
        InvalidArgumentError: nothing so high is stored.
    """
    if progress is None:
        raise SequencesMixedError("the writer was not opened for the stream", subject=subject)
    view = progress.admitted
    if view.refusal is not None:
        raise view.refusal.error(subject)
    if not 0 <= stored_below <= view.row.highest + 1:
        raise InvalidArgumentError(
            f"sequences below {stored_below} cannot all be stored: the highest that is stored is {view.row.highest}",
            subject=subject,
        )
    return view
