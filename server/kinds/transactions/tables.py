"""The checkpoint tables of transactions, open ones and outcomes."""

import json
from typing import Any, Final

from millrace.model.producer import Producer
from millrace.model.transaction import TransactionPart, TransactionState
from millrace.server.container.checkpoint.reader import KindArchive
from millrace.server.container.kind import Detail
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.transaction import Transaction, TransactionRow
from millrace.server.container.table import Row, Table, json_text, places_of_texts, range_of_texts, range_texts
from millrace.wire import messages as m

TABLE: Final = Table(
    "transactions",
    number=15,
    key=["number"],
    integers=["number", "state", "begun_us", "lease_ms", "decided_us", "decided_uptime_us"],
    # The lists as JSON, key ranges in hexadecimal digits; `null` where there is no producer.
    texts=["name", "streams", "cuts", "branches", "producer"],
    blobs=["digest"],
    indexes=[["name"], ["decided_uptime_us", "number"]],
)


def row_of(transaction: Transaction) -> Row:
    """Return the row of a transaction."""
    row = transaction.row
    streams = [
        (stream.stream_id, stream.epoch, [(number, *range_texts(low, last)) for number, low, last in stream.ranges])
        for stream in row.streams
    ]
    return (
        row.number,
        row.state,
        row.begun_us,
        row.lease_ms,
        row.decided_us,
        transaction.decided_uptime_us,
        transaction.name,
        json_text(streams),
        json_text(row.cuts),
        json_text(row.branches),
        json_text(row.producer),
        row.digest,
    )


def load(
    *, state: int, decided_uptime_us: int, streams: str, cuts: str, branches: str, producer: str, **columns: Any
) -> Transaction:
    """Return a transaction from the columns of its row."""
    as_whom = json.loads(producer)
    row = TransactionRow(
        state=TransactionState(state),
        streams=[
            m.TransactionStream(
                stream_id,
                epoch,
                [m.SegmentRangeRecord(number, *places_of_texts(low, last)) for number, low, last in ranges],
            )
            for stream_id, epoch, ranges in json.loads(streams)
        ],
        cuts=[
            m.TransactionCut(stream_id, epoch, [m.CutPosition(*position) for position in positions])
            for stream_id, epoch, positions in json.loads(cuts)
        ],
        branches=[m.BranchCount(*branch) for branch in json.loads(branches)],
        producer=None if as_whom is None else Producer(*as_whom),
        **columns,
    )
    return Transaction(row, decided_uptime_us=decided_uptime_us)


def _row_of_part(transaction: Transaction, segment_id: int) -> Row | None:
    part = transaction.parts.get(segment_id)
    if part is None:
        return None
    return (segment_id, part.branch, part.stream_id, *range_texts(part.key_range.low, part.key_range.last))


def _load_parts(transaction: Transaction, rows: list[Row]) -> None:
    transaction.parts = {
        segment_id: TransactionPart(
            segment_id=segment_id, branch=branch, stream_id=stream_id, key_range=range_of_texts(low, last)
        )
        for segment_id, branch, stream_id, low, last in rows
    }
    transaction.admit_as_durable()


PARTS: Final = Table(
    "parts",
    number=16,
    key=["number", "segment_id"],
    integers=["number", "segment_id", "branch", "stream_id"],
    texts=["low", "last"],
)


class TransactionArchive(KindArchive[Transaction]):
    """The transactions of a checkpoint, open ones and outcomes."""

    def open(self) -> list[int]:
        """Return the numbers of those that are not over."""
        return self._reader.column("SELECT number FROM transactions WHERE decided_uptime_us < 0 ORDER BY number")

    def outcomes(
        self, *, is_named: bool, before_uptime_us: int, after: tuple[int, int], count_max: int
    ) -> list[tuple[int, int]]:
        """Return the oldest that are over, each as the uptime when it ended and its number, ascending.

        Args:
            is_named: those with a name, or those without one.
            before_uptime_us: that ended before this uptime.
            after: above this pair.
        """
        return self._reader.select(
            "SELECT decided_uptime_us, number FROM transactions WHERE decided_uptime_us >= 0 "
            f"AND decided_uptime_us < ? AND (decided_uptime_us, number) > (?, ?) "
            f"AND name {'<>' if is_named else '='} '' "
            f"ORDER BY decided_uptime_us, number LIMIT {count_max}",
            [before_uptime_us, *after],
        )


DETAILS: Final[tuple[Detail[Transaction], ...]] = (Detail(table=PARTS, row=_row_of_part, load=_load_parts),)


def restore_state(state: ContainerState, archive: TransactionArchive) -> None:
    """Keep all open transactions in memory."""
    for number in archive.open():
        # Pinned first: where there is no room for idle entities, what is only loaded is evicted at once, and the next
        # request would load another object for the same transaction.
        with state.transactions.pin([number]):
            state.open_transactions.add(state.transactions[number])
