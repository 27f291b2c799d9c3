"""The bounds of transactions: how many are open, over how much, in how much memory; checked as they begin and grow.

The addresses of the hosts that begin transactions share each bound (`shares`).
"""

from collections.abc import Mapping, Sequence
from typing import Final

from millrace.model.transaction import TransactionPart
from millrace.server.container.container import RETRY_AFTER_MS
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.stream import Stream
from millrace.server.container.state.transaction import NO_SESSION, Transaction
from millrace.server.errors import InvalidArgumentError, TransactionsFullError
from millrace.server.shares import has_room
from millrace.wire import messages as m

from .options import TransactionsOptions
from .part_validation import check_new_parts

STREAMS_COUNT_MAX: Final = 100
"""Of one transaction."""
RANGES_COUNT_MAX: Final = 32 * 1024
"""Open segments of the streams of one transaction, which the reply to its beginning names."""


class TransactionLimits:
    """The bounds of the transactions of one container, held against those that are open."""

    def __init__(self, state: ContainerState, options: TransactionsOptions) -> None:
        self._opened = state.open_transactions
        self._options = options

    def check_request(self, lease_ms: int, stream_names: Sequence[str]) -> None:
        """Raise InvalidArgumentError if no transaction may have such a lease, or be over so many streams."""
        if not 1000 <= lease_ms <= self._options.lease_s_max * 1000:
            raise InvalidArgumentError(
                f"the lease of a transaction is 1 to {self._options.lease_s_max} s, not {lease_ms / 1000:g} s"
            )
        if not 1 <= len(stream_names) <= STREAMS_COUNT_MAX or len(set(stream_names)) < len(stream_names):
            raise InvalidArgumentError(f"a transaction is over 1 to {STREAMS_COUNT_MAX} streams, each given once")

    def check_ranges(self, routes: Sequence[m.TransactionStream]) -> None:
        """Raise InvalidArgumentError if no transaction may be over streams of so many open segments."""
        if sum(len(route.ranges) for route in routes) > RANGES_COUNT_MAX:
            raise InvalidArgumentError(f"the streams of a transaction have at most {RANGES_COUNT_MAX} open segments")

    def check_open_count(self, streams: Sequence[Stream], session_id: bytes, address: str) -> None:
        """Raise TransactionsFullError if a host may not begin another one over these streams, in this session."""
        opened, options = self._opened, self._options
        counts = [("", opened.begun_count, opened.address_count(address), options.open_count_max)]
        for stream in streams:
            taken, held = opened.count_over(stream.stream_id), opened.address_count_over(address, stream.stream_id)
            counts.append((f" over {stream.name}", taken, held, options.open_per_stream_count_max))
        for which, taken, held, bound in counts:
            if not has_room(bound=bound, taken=taken, held=held):
                raise self._too_many(taken, which, f"your address holds {held}; addresses share the limit of {bound}")
        if session_id != NO_SESSION and opened.count_by(session_id) >= options.open_per_session_count_max:
            raise self._too_many(
                opened.count_by(session_id), " that this client began", "and that is the limit of one client"
            )

    def check_memory(self, more_bytes: int, address: str) -> None:
        """Raise TransactionsFullError if the transactions of an address may not take so much more memory."""
        size_bytes, size_max = self._opened.size_bytes, self._options.open_size_bytes_max
        held = self._opened.address_size_bytes(address)
        if not has_room(bound=size_max, taken=size_bytes, held=held, more=more_bytes):
            raise TransactionsFullError(
                f"the open transactions take {size_bytes} bytes of memory with their parts, {held} of them for your"
                f" address; {more_bytes} more are asked for, and addresses share the limit of {size_max}: some have to"
                " end first",
                retry_after_ms=RETRY_AFTER_MS,
            )

    def check_new_parts(self, transaction: Transaction, branch: int, parts: Mapping[int, TransactionPart]) -> None:
        """Raise unless a transaction, and all that are open, may have these parts more.

        Raises:
            InvalidArgumentError: the transaction may not; see `part_validation`.
            TransactionsFullError: all together may not.
        """
        check_new_parts(transaction, branch, parts.values(), subject=transaction.subject)
        parts_count, count_max = self._opened.parts_count, self._options.open_parts_count_max
        held = self._opened.address_parts_count(transaction.address)
        if not has_room(bound=count_max, taken=parts_count, held=held, more=len(parts)):
            raise TransactionsFullError(
                f"the open transactions have {parts_count} parts, {held} of them for your address; addresses share the"
                f" limit of {count_max}: some have to end first",
                retry_after_ms=RETRY_AFTER_MS,
            )

    def _too_many(self, count: int, which: str, limit: str) -> TransactionsFullError:
        prepared = f"in all, {self._opened.prepared_count} are prepared and wait for a decision"
        return TransactionsFullError(
            f"{count} transactions{which} are open, {limit}: some have to end first; {prepared}. `millrace txn list`"
            " lists them, and `millrace txn abort --number N` aborts one",
            retry_after_ms=RETRY_AFTER_MS,
        )
