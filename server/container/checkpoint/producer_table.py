"""How producers are stored in a checkpoint."""

import json
from typing import Final

from millrace.model.producer import ProducerRow
from millrace.server.container.state.producer import KnownProducer

from .kind import Kind
from .table import Row, Table, json_text


def _row(producer: KnownProducer) -> Row:
    row = producer.row
    return (
        producer.number,
        row.last_sequence,
        producer.writer_id,
        row.holder,
        row.run,
        json_text(row.fenced),
    )


def _load(*, number: int, last_sequence: int, writer_id: str, holder: str, run: str, fenced: str) -> KnownProducer:
    row = ProducerRow(holder=holder, run=run, last_sequence=last_sequence, fenced=tuple(json.loads(fenced)))
    return KnownProducer(number=number, writer_id=writer_id, row=row)


PRODUCERS: Final[Kind[KnownProducer]] = Kind(
    table=Table(
        "producers",
        number=18,
        key=["number"],
        integers=["number", "last_sequence"],
        texts=["writer_id", "holder", "run", "fenced"],  # the runs that were replaced, as JSON
        indexes=[["writer_id"]],
    ),
    name="writer_id",
    row=_row,
    load=_load,
)
