"""Requests about transactions.

What fills and ends a transaction may be sent without waiting for answers: it is decided in the order in which it was
sent, and the reply follows when that is durable.
"""

from collections.abc import Mapping
from functools import partial

from millrace.model.producer import Producer
from millrace.server.container.requests import ClientOrigin, OrderedRequest, ReadyReply, Reply, page_count
from millrace.server.errors import InvalidArgumentError
from millrace.wire import messages as m

from .answers import step_reply
from .commands import AdmittedStep, TransactionCommands


class TransactionRequests:
    """Answers requests about transactions."""

    def __init__(self, transactions: TransactionCommands) -> None:
        self._transactions = transactions

    @property
    def ordered(self) -> Mapping[type[m.Message], OrderedRequest]:
        """The requests that are decided in their order."""
        return {
            m.BeginTransaction: OrderedRequest(self._decide_begin, self._begin, precedes_appends=True),
            m.AddParts: OrderedRequest(self._decide_parts, precedes_appends=True),
            m.PrepareTransaction: OrderedRequest(self._decide_prepare),
            m.CommitTransaction: OrderedRequest(self._decide_commit),
        }

    async def reserve_ids(self, message: m.ReserveIds) -> m.IdRange:
        return m.IdRange(await self._transactions.reserve_ids(message.count), message.count)

    def _decide_begin(self, message: m.BeginTransaction, origin: ClientOrigin) -> Reply | None:
        admitted = self._transactions.begin_now(
            message.number,
            message.name,
            lease_ms=message.lease_ms,
            streams=message.streams,
            session_id=origin.session_id,
            address=origin.address,
            producer=_producer_of(message),
            parts=message.parts,
        )
        return None if admitted is None else self._reply(admitted, admitted.reply)

    async def _begin(self, message: m.BeginTransaction, origin: ClientOrigin) -> Reply:
        admitted = await self._transactions.begin(
            message.number,
            message.name,
            lease_ms=message.lease_ms,
            streams=message.streams,
            session_id=origin.session_id,
            address=origin.address,
            producer=_producer_of(message),
            parts=message.parts,
        )
        return self._reply(admitted, admitted.reply)

    def _decide_parts(self, message: m.AddParts, _: ClientOrigin) -> Reply:
        admitted = self._transactions.add_parts_now(message.number, message.branch, message.parts)
        return self._reply(admitted, m.Done(int(admitted.decision is not None)))

    def _decide_commit(self, message: m.CommitTransaction, _: ClientOrigin) -> Reply | None:
        # The places of cursors have to be looked up, and what a name leads to has to be loaded.
        if message.cursors or not message.number or not self._transactions.can_commit_now(message.number):
            return None
        admitted = self._transactions.commit_now(
            message.number,
            message.branches,
            drops_others=bool(message.drops_others),
            fingerprint=message.fingerprint,
        )
        return None if admitted is None else self._reply(admitted, admitted.reply)

    def _prepared(self, message: m.PrepareTransaction) -> AdmittedStep:
        return self._transactions.prepare_now(message.number, message.branches, drops_others=bool(message.drops_others))

    def _decide_prepare(self, message: m.PrepareTransaction, _: ClientOrigin) -> Reply:
        return self._reply(self._prepared(message), None)

    def _reply(self, admitted: AdmittedStep, message: m.Message | None) -> Reply:
        """Return the reply to a step: the message, or else the transaction as it is when that is durable."""
        if message is None:
            return partial(self._current_reply, admitted)
        return ReadyReply(message, admitted.decision is not None)

    async def _current_reply(self, admitted: AdmittedStep) -> m.TransactionReply:
        """Return a transaction as it is when a step of it is durable."""
        changed = await self._transactions.settled(admitted)
        return step_reply(admitted.transaction, changed=changed)

    async def commit_transaction(self, message: m.CommitTransaction) -> m.TransactionReply:
        admitted = await self._transactions.commit(
            message.number,
            message.branches,
            drops_others=bool(message.drops_others),
            name=message.name,
            cursors=message.cursors,
            fingerprint=message.fingerprint,
        )
        return await self._current_reply(admitted)

    async def prepare_transaction(self, message: m.PrepareTransaction) -> m.TransactionReply:
        return await self._current_reply(self._prepared(message))

    async def abort_transaction(self, message: m.AbortTransaction) -> m.TransactionReply:
        transaction, changed = await self._transactions.abort(message.number, message.name)
        return step_reply(transaction, changed=changed)

    async def get_transaction(self, message: m.GetTransaction) -> m.TransactionInfo:
        return await self._transactions.answers.outcome_with_names(message.number, message.name)

    async def renew_transactions(self, message: m.RenewTransactions) -> m.Done:
        return m.Done(int(self._transactions.renew(message.numbers)))

    async def list_transactions(self, message: m.ListTransactions) -> m.TransactionList:
        return self._transactions.answers.list_open(after=message.after, count_max=page_count(message))


def _producer_of(message: m.BeginTransaction) -> Producer | None:
    if len(message.producers) > 1:
        raise InvalidArgumentError("a transaction has one producer, or none", subject=message.name)
    return Producer(*message.producers[0]) if message.producers else None
