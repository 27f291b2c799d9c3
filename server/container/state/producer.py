"""The state of one producer in memory."""

from dataclasses import dataclass, field
from typing import Final

from millrace.model.producer import ProducerRow

PRODUCER_SIZE_BYTES: Final = 700
RUN_SIZE_BYTES: Final = 110
"""Memory of a producer, and of a run that was replaced (measured with 36 letters each, rounded up)."""


@dataclass(slots=True, kw_only=True, eq=False)
class KnownProducer:
    """A producer of which a run has taken over; an idle one is in the checkpoint only.

    Attributes:
        number: forever; of this producer alone.
        row: what is durable of it.
        admitted: the same, ahead by what is queued.
        leaving: whether the record that forgets it is queued.
    """

    number: int
    writer_id: str
    row: ProducerRow = field(default_factory=ProducerRow)
    admitted: ProducerRow = field(init=False)
    leaving: bool = False

    def __post_init__(self) -> None:
        """Begin with the admitted view of the durable one."""
        self.admit_as_durable()

    def admit_as_durable(self) -> None:
        """Let the admitted view be the durable one: nothing is queued."""
        self.admitted = self.row

    @property
    def memory_bytes(self) -> int:
        """About how much memory this takes."""
        return PRODUCER_SIZE_BYTES + RUN_SIZE_BYTES * len(self.row.fenced) + len(self.row.described)
