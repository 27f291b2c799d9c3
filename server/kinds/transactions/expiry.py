"""Aborts transactions whose leases have expired, and forgets outcomes and producers that committed nothing.

`Leases` returns the leases that have expired. That a transaction expires is a decision like any other, checked on the
admitted view; so a request that arrived before it wins.

A transaction that has neither a name nor parts is worth nothing to anybody but its client. Its lease is some minutes at
most, so that a client which begins many of them and disappears takes the places of others for no longer.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from millrace.model.transaction import TransactionState
from millrace.server.container.container import SegmentContainer
from millrace.server.container.leases import LeaseClock, Leases
from millrace.server.container.state.transaction import Transaction
from millrace.server.errors import ServerError
from millrace.server.kinds.aborts import ENDED_COUNT_MAX, end_transactions
from millrace.server.kinds.producers.row import producers_of
from millrace.server.kinds.producers.unused import UnusedProducers
from millrace.wire import messages as m
from millrace.wire.limits import EMPTY_LEASE_S_MAX

from .options import TransactionsOptions
from .tables import TransactionArchive

logger = logging.getLogger(__name__)

RETRY_S: Final = 5.0
FORGET_INTERVAL_S: Final = 60.0
FORGOTTEN_COUNT_MAX: Final = 1000
"""Outcomes in one record."""


def leases_of(transactions: Iterable[Transaction]) -> Iterator[tuple[int, float, Transaction]]:
    """Yield number and length of lease of each transaction that is open: no lease ends one that is prepared."""
    for transaction in transactions:
        if transaction.admitted_state is TransactionState.OPEN:
            yield transaction.number, _lease_s(transaction), transaction


def _lease_s(transaction: Transaction) -> float:
    lease_s = transaction.row.lease_ms / 1000
    is_empty = not transaction.name and not transaction.admitted_parts
    return min(lease_s, EMPTY_LEASE_S_MAX) if is_empty else lease_s


@dataclass(slots=True)
class TransactionsStatistics:
    """Open transactions, and those that ended since the server started."""

    open: int = 0
    prepared: int = 0
    open_parts: int = 0
    oldest_age_s: float = 0.0
    outcomes: int = 0
    producers: int = 0
    committed_total: int = 0
    aborted_total: int = 0
    expired_total: int = 0


class TransactionExpiryLoop:
    """Aborts expired transactions of one container, and forgets outcomes. Created when the container was opened.

    Args:
        archive: the transactions of the checkpoint.
        unused_producers: are forgotten.
    """

    def __init__(
        self,
        *,
        container: SegmentContainer,
        archive: TransactionArchive,
        unused_producers: UnusedProducers,
        clock: LeaseClock,
        options: TransactionsOptions,
    ) -> None:
        self._container = container
        self._state = container.state
        self._archive = archive
        self._unused_producers = unused_producers
        self._options = options
        self._clock = clock
        self._leases: Leases[int] = Leases(clock)

    async def run(self) -> None:
        """Check leases and outcomes until cancelled, which undoes nothing."""
        forgotten_s = 0.0
        while True:
            await self._container.clock.sleep(self._options.tick_s)
            try:
                await self.expire()
                await self._unused_producers.forget()
                if self._clock.now_s - forgotten_s >= FORGET_INTERVAL_S:
                    forgotten_s = self._clock.now_s
                    await self.forget()
            except ServerError as error:
                logger.warning("expiry of transactions refused retry_after_s=%.0f error=%s", RETRY_S, error)
                await self._container.clock.sleep(RETRY_S)

    async def expire(self) -> None:
        """Abort transactions whose leases have expired."""
        by_number = self._state.open_transactions.by_number
        expired = [by_number[number] for number in self._leases.expired(leases_of(by_number.values()))]
        decided = []
        for start in range(0, len(expired), ENDED_COUNT_MAX):
            page = expired[start : start + ENDED_COUNT_MAX]
            decided.append(end_transactions(self._container, page, TransactionState.EXPIRED).durable())
        if decided:
            logger.info("transactions expired count=%d", len(expired))
            await asyncio.gather(*decided)

    async def forget(self) -> None:
        """Forget outcomes that are old enough; above the limit, the excess, those without names first."""
        now_us, options = self._state.scalars.uptime_us, self._options
        await self._forget_before(now_us - options.unnamed_outcome_s * 1_000_000, is_named=False)
        await self._forget_before(now_us - options.named_outcome_s * 1_000_000, is_named=True)
        for is_named in (False, True):
            excess = self._outcomes_count - options.outcomes_count_max
            if excess > 0:
                await self._forget_before(now_us + 1, is_named=is_named, count_max=excess)

    async def _forget_before(self, uptime_us: int, *, is_named: bool, count_max: int | None = None) -> None:
        """Forget the oldest outcomes in the checkpoint: those from before an uptime, up to a number."""
        after = (-1, 0)
        left = len(self._state.transactions) if count_max is None else count_max
        while left > 0 and (
            page := await asyncio.to_thread(
                self._archive.outcomes,
                is_named=is_named,
                before_uptime_us=uptime_us,
                after=after,
                count_max=min(left, FORGOTTEN_COUNT_MAX),
            )
        ):
            after = page[-1]
            numbers = [number for _, number in page]
            with await self._container.loader.pin(m.Required(transactions=numbers)):
                # Missing ones were forgotten after the checkpoint was taken.
                present = [number for number in numbers if number in self._state.transactions]
                if present:
                    await self._container.decide(m.OutcomesForgotten(present), present[0])
            left -= len(present)

    @property
    def _outcomes_count(self) -> int:
        return len(self._state.transactions) - len(self._state.open_transactions)

    @property
    def statistics(self) -> TransactionsStatistics:
        """Figures as of now."""
        opened = self._state.open_transactions
        states = [transaction.admitted_state for transaction in opened.by_number.copy().values()]
        oldest_us = min((transaction.row.begun_us for transaction in opened.by_number.copy().values()), default=0)
        return TransactionsStatistics(
            open=len(opened),
            prepared=states.count(TransactionState.PREPARED),
            open_parts=opened.parts_count,
            oldest_age_s=(self._container.clock.unix_us() - oldest_us) / 1e6 if oldest_us else 0.0,
            outcomes=self._outcomes_count,
            producers=len(producers_of(self._state)),
            committed_total=opened.decided_totals[TransactionState.COMMITTED],
            aborted_total=opened.decided_totals[TransactionState.ABORTED],
            expired_total=opened.decided_totals[TransactionState.EXPIRED],
        )
