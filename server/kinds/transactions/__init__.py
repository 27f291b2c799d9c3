"""Transactions: parts of several streams that become readable together."""

from typing import Final

from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.container import SegmentContainer
from millrace.server.container.kind import Kind
from millrace.server.container.leases import LeaseClock
from millrace.server.container.service import Collaborators, RunningService, Service
from millrace.server.container.state.transaction import Transaction
from millrace.server.kinds.producers.commands import ProducerCommands
from millrace.server.kinds.producers.unused import UnusedProducers
from millrace.server.kinds.streams.commands import StreamCommands

from . import records, tables
from .commands import TransactionCommands
from .expiry import TransactionExpiryLoop
from .figures import FIGURES
from .options import TransactionsOptions
from .requests import TransactionRequests
from .verification import problems


def _commands(made: Collaborators) -> TransactionCommands:
    return TransactionCommands(
        made.get(SegmentContainer), made.get(StreamCommands), options=made.get(TransactionsOptions)
    )


def _expiry(made: Collaborators) -> TransactionExpiryLoop:
    return TransactionExpiryLoop(
        container=made.get(SegmentContainer),
        archive=made.get(CheckpointStore).archive(tables.TransactionArchive),
        unused_producers=made.get(UnusedProducers),
        clock=made.get(LeaseClock),
        options=made.get(TransactionsOptions),
    )


def _begin(made: Collaborators) -> RunningService:
    requests, expiry = TransactionRequests(made.get(TransactionCommands)), made.get(TransactionExpiryLoop)
    return RunningService(
        requests=[requests],
        ordered=requests.ordered,
        loops={"transactions": expiry.run},
        statistics={"transactions": lambda: expiry.statistics},
    )


TRANSACTIONS: Final[Kind[Transaction]] = Kind(
    table=tables.TABLE,
    name_column="name",
    row=tables.row_of,
    load=tables.load,
    make=Transaction,
    details=tables.DETAILS,
    restore_state=tables.restore_state,
    archive=tables.TransactionArchive,
    records=records.RECORDS,
    problems=problems,
    transitions=records.TRANSITIONS,
    service=Service(
        factories={
            TransactionCommands: _commands,
            ProducerCommands: lambda made: made.get(TransactionCommands).producers,
            TransactionExpiryLoop: _expiry,
        },
        begin=_begin,
        figures=FIGURES,
    ),
)
