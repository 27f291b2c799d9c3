"""Writers: the event numbers and sequences by which each event is stored once; exclusive writers of streams."""

from typing import Final

from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.container import SegmentContainer
from millrace.server.container.kind import Kind
from millrace.server.container.service import Collaborators, RunningService, Service
from millrace.server.container.state.writer import Writer
from millrace.server.kinds.streams.commands import StreamCommands

from . import records, tables
from .commands import WriterCommands
from .expiry import WriterExpiryLoop
from .figures import FIGURES
from .options import WritersOptions
from .requests import WriterRequests
from .uptime import Uptime
from .verification import problems


def _expiry(made: Collaborators) -> WriterExpiryLoop:
    return WriterExpiryLoop(
        container=made.get(SegmentContainer),
        writers=made.get(WriterCommands),
        archive=made.get(CheckpointStore).archive(tables.WriterArchive),
        uptime=made.get(Uptime),
        options=made.get(WritersOptions),
    )


def _begin(made: Collaborators) -> RunningService:
    requests = WriterRequests(made.get(SegmentContainer), made.get(WriterCommands), made.get(StreamCommands))
    expiry = made.get(WriterExpiryLoop)
    return RunningService(
        requests=[requests], loops={"writers": expiry.run}, statistics={"writers": lambda: expiry.statistics}
    )


WRITERS: Final[Kind[Writer]] = Kind(
    table=tables.TABLE,
    name_column="writer_id",
    row=tables.row_of,
    load=tables.load,
    make=Writer,
    details=tables.DETAILS,
    archive=tables.WriterArchive,
    records=records.RECORDS,
    transitions=records.TRANSITIONS,
    problems=problems,
    service=Service(
        factories={
            WriterCommands: lambda made: WriterCommands(made.get(SegmentContainer)),
            WriterExpiryLoop: _expiry,
        },
        begin=_begin,
        figures=FIGURES,
    ),
)
