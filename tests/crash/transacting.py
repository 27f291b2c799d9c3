"""A client of a server that is killed, which writes in transactions and resumes by their names what it had begun."""

import random
from dataclasses import dataclass
from itertools import pairwise

from millrace.model.key_range import KEY_SPACE
from millrace.model.transaction import TransactionState
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from tests.support.history import Recorder
from tests.support.protocol import Peer, RefusedError, Stored
from tests.support.transactions import PeerTransaction, outcome_of

from .recorded_appends import Look, RecordedAppends, payload

STATES = {
    TransactionState.UNKNOWN: "unknown",
    TransactionState.OPEN: "open",
    TransactionState.PREPARED: "prepared",
    TransactionState.COMMITTED: "committed",
    TransactionState.ABORTED: "aborted",
    TransactionState.EXPIRED: "aborted",
}
BORDERS = 16
"""Segments begin at multiples of a sixteenth of the key space."""


@dataclass(slots=True)
class Transacting:
    """Writes to two streams in one transaction after the other, and commits or aborts it; scales them meanwhile.

    Attributes:
        number: of the transaction that it is at; those below are over.
    """

    name: str
    appends: RecordedAppends
    number: int = 0
    lives: int = 0

    @property
    def streams(self) -> tuple[str, str]:
        return f"{self.name}/one", f"{self.name}/two"

    @property
    def _recorder(self) -> Recorder:
        return self.appends.recorder

    async def prepare(self, peer: Peer) -> None:
        for stream in self.streams:
            await peer.ask(m.CreateStream(stream, 2, ""), m.StreamInfo)

    async def run(self, address: str) -> None:
        self.lives += 1
        async with await Peer.connect(address) as peer:
            while True:
                await self._end_one(peer, random.Random(f"{self.appends.seed}/{self.name}/{self.number}/{self.lives}"))
                self.number += 1

    async def _end_one(self, peer: Peer, choices: random.Random) -> None:
        """Begin the transaction of the number, or resume it, and end it."""
        name = f"{self.name}-{self.number}"
        call = self._recorder.call(self.name, "begin", name=name)
        try:
            transaction = await PeerTransaction.begin(peer, *self.streams, name=name)
        except RefusedError as error:
            if error.code is not ErrorCode.TRANSACTION_COMMITTED:
                raise
            return  # by the commit that the life before sent
        is_prepared = transaction.info.state == TransactionState.PREPARED
        answer = "prepared" if is_prepared else "begun" if transaction.info.changed else "joined"
        self._recorder.answer(call, answer, txn=transaction.number)
        if not is_prepared:
            if choices.random() < 0.3:
                await self._scale(peer, choices)
            for routed_id in transaction.routed_ids:
                await self._write(transaction, routed_id, choices)
            if choices.random() < 0.5:
                await self._scale(peer, choices)
            if not transaction.counts or choices.random() < 0.2:
                call = self._recorder.call(self.name, "abort", txn=transaction.number)
                await transaction.abort()
                self._recorder.answer(call, "aborted", txn=transaction.number)
                return
            if choices.random() < 0.3:
                call = self._recorder.call(
                    self.name, "prepare", txn=transaction.number, branches=[str(self.lives)]
                )  # fmt: skip
                await transaction.prepare(self.lives, drops_others=True)
                self._recorder.answer(call, "prepared", txn=transaction.number)
                is_prepared = True
        await self._commit(peer, transaction, is_prepared=is_prepared)

    async def _commit(self, peer: Peer, transaction: PeerTransaction, *, is_prepared: bool) -> None:
        number = transaction.number
        if is_prepared:
            call = self._recorder.call(self.name, "commit", txn=number)
            request = m.CommitTransaction(number=number, name="", branches=[], drops_others=0, cursors=[])
        else:
            call = self._recorder.call(self.name, "commit", txn=number, branches=[str(self.lives)])
            request = transaction.commit_request(self.lives, drops_others=True)
        await peer.ask(request, m.TransactionReply)
        self._recorder.answer(call, "committed", txn=number)

    async def _write(self, transaction: PeerTransaction, routed_id: int, choices: random.Random) -> None:
        """Write some events to the part of one range, or none.

        Raises:
            ConnectionResetError: the server has no room: this life ends.
        """
        count = choices.randrange(4)
        if not count:
            return
        (stream,) = [
            name
            for name, routes in zip(self.streams, transaction.info.streams, strict=True)
            if routed_id in {segment_id for segment_id, _, _ in routes.ranges}
        ]
        await transaction.add_parts([routed_id], branch=self.lives)
        for number in range(count):
            event = f"{self.name}:{self.number}.{self.lives}.{routed_id}.{number}"
            call = self._recorder.call(
                self.name, "write", stream=stream, txn=transaction.number, branch=str(self.lives),
                writer=self.name, events=[event], keys=[str(routed_id)],
            )  # fmt: skip
            (outcome,) = await transaction.append(
                routed_id, payload(event, seed=self.appends.seed), branch=self.lives
            )  # fmt: skip
            if not isinstance(outcome, Stored):
                raise ConnectionResetError(outcome)
            self._recorder.answer(call, "stored")

    async def _scale(self, peer: Peer, choices: random.Random) -> None:
        """Give one of the streams other borders."""
        stream = choices.choice(self.streams)
        info = await peer.ask(m.GetStream(stream), m.StreamInfo)
        sealed = [each.segment_id for each in info.segments if not each.sealed_epoch]
        unit = KEY_SPACE // BORDERS
        borders = [0, *sorted(choices.sample(range(1, BORDERS), choices.randrange(3))), BORDERS]
        ranges = [m.KeyRangeRecord(low * unit, high * unit - 1) for low, high in pairwise(borders)]
        await peer.ask(m.ScaleStream(stream, sealed, ranges), m.StreamInfo)

    async def look(self, peer: Peer, look: Look) -> None:
        for stream in self.streams:
            await look.read_stream(peer, stream)
        for number in range(self.number + 1):
            name = f"{self.name}-{number}"
            call = look.recorder.call("look", "outcome", name=name)
            found = await outcome_of(peer, name=name)
            known = {"txn": found.number} if found.number else {}
            look.recorder.answer(call, STATES[TransactionState(found.state)], **known)
