"""The checkpoint tables of producers."""

import json
from dataclasses import replace
from typing import Final

from millrace.model.producer import ProducerRow
from millrace.server.container.checkpoint.reader import KindArchive
from millrace.server.container.table import Row, Table, json_text

from .row import KnownProducer

TABLE: Final = Table(
    "producers",
    number=18,
    key=["number"],
    integers=["number", "last_sequence"],
    # `fenced`: the runs that were replaced, as a list in JSON. With a fingerprint it is an object that has the list
    # too: a column of its own would make checkpoints without it unreadable.
    texts=["writer_id", "holder", "run", "fenced"],
    indexes=[["writer_id"]],
)


def row_of(producer: KnownProducer) -> Row:
    """Return the row of a producer."""
    row = producer.row
    return (
        row.number,
        row.last_sequence,
        row.writer_id,
        row.holder,
        row.run,
        json_text(_past_of(row)),
    )


def _past_of(row: ProducerRow) -> object:
    """Return the runs that were replaced, and the fingerprint if there is one."""
    if not row.described:
        return row.fenced
    return {"runs": row.fenced, "sequence": row.described_sequence, "fingerprint": row.described}


def load(*, number: int, last_sequence: int, writer_id: str, holder: str, run: str, fenced: str) -> KnownProducer:
    """Return a producer from the columns of its row."""
    past = json.loads(fenced)
    row = ProducerRow(number=number, writer_id=writer_id, holder=holder, run=run, last_sequence=last_sequence)
    if isinstance(past, list):
        row = replace(row, fenced=tuple(past))
    else:
        row = replace(
            row,
            fenced=tuple(past["runs"]),
            described_sequence=past["sequence"],
            described=past["fingerprint"],
        )
    return KnownProducer(row)


class ProducerArchive(KindArchive[KnownProducer]):
    """The producers of a checkpoint."""

    def unused(self) -> list[str]:
        """Return the writer ids of those that have committed nothing, and whose runs were not replaced."""
        rows = self._reader.select("SELECT writer_id FROM producers WHERE last_sequence < 0 AND fenced = '[]'", [])
        return [writer_id for (writer_id,) in rows]
