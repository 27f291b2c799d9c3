"""Streams: named sets of segments, each with a range of the key space, and their cuts."""

from operator import attrgetter
from typing import Final

from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.container import SegmentContainer
from millrace.server.container.kind import Kind
from millrace.server.container.service import Collaborators, RunningService, Service
from millrace.server.container.state import exclusive_writers
from millrace.server.container.state.stream import Stream

from . import records, tables
from .catalog import Catalog
from .commands import StreamCommands
from .requests import Explain, StreamRequests


def _catalog(made: Collaborators) -> Catalog:
    return Catalog(made.get(SegmentContainer).state, made.get(CheckpointStore).archive(tables.StreamArchive))


def _begin(made: Collaborators) -> RunningService:
    requests = StreamRequests(
        made.get(SegmentContainer), made.get(StreamCommands), made.get(Catalog), explain=made.get(Explain)
    )
    return RunningService(requests=[requests])


STREAMS: Final[Kind[Stream]] = Kind(
    table=tables.TABLE,
    name_column="name",
    row=tables.row_of,
    load=tables.load,
    details=tables.DETAILS,
    restore_state=tables.restore_state,
    archive=tables.StreamArchive,
    records=records.RECORDS,
    transitions=exclusive_writers.TRANSITIONS,
    service=Service(
        factories={StreamCommands: lambda made: StreamCommands(made.get(SegmentContainer)), Catalog: _catalog},
        begin=_begin,
    ),
    scopes={"streams": attrgetter("segment_ids"), "open_streams": attrgetter("open_ids")},
)
