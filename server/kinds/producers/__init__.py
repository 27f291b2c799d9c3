"""Producers: the rows by which each sequence of transactions is committed once."""

from typing import Final

from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.container import SegmentContainer
from millrace.server.container.kind import Kind
from millrace.server.container.service import Collaborators, RunningService, Service

from . import records, tables
from .commands import ProducerCommands
from .requests import ProducerRequests
from .row import KnownProducer
from .unused import UnusedProducers
from .verification import problems


def _unused(made: Collaborators) -> UnusedProducers:
    archive = made.get(CheckpointStore).archive(tables.ProducerArchive)
    return UnusedProducers(made.get(SegmentContainer), made.get(ProducerCommands), archive)


def _begin(made: Collaborators) -> RunningService:
    return RunningService(requests=[ProducerRequests(made.get(ProducerCommands))])


PRODUCERS: Final[Kind[KnownProducer]] = Kind(
    table=tables.TABLE,
    name_column="writer_id",
    row=tables.row_of,
    load=tables.load,
    make=KnownProducer,
    archive=tables.ProducerArchive,
    records=records.RECORDS,
    transitions=records.TRANSITIONS,
    problems=problems,
    service=Service(factories={UnusedProducers: _unused}, begin=_begin),
)
