"""Checks of producers for `millrace verify`."""

from collections.abc import Iterator

from millrace.model.limits import FINGERPRINT_SIZE_BYTES_MAX
from millrace.model.producer import FENCED_RUNS_COUNT_MAX, NO_RUN
from millrace.model.sequence_row import NO_SEQUENCE
from millrace.server.container.state.container_state import ContainerState

from .row import producers_of


def problems(state: ContainerState) -> Iterator[str]:
    """Yield producers whose rows no records can make."""
    numbers: dict[str, int] = {}
    for producer in producers_of(state).values():
        row, number = producer.row, numbers.setdefault(producer.name, producer.number)
        if number != producer.number:
            yield f"producers {number} and {producer.number} have the same writer id, {producer.name}"
        if row.run in row.fenced or len(row.fenced) > FENCED_RUNS_COUNT_MAX:
            yield f"producer {producer.name} has impossible fenced runs: {row.fenced}"
        if len(row.described.encode()) > FINGERPRINT_SIZE_BYTES_MAX:
            yield f"producer {producer.name} has a fingerprint that is too long"
        if row.last_sequence != NO_SEQUENCE and row.run == NO_RUN:
            yield f"producer {producer.name} has committed {row.last_sequence} in no run"
