"""A random walk of producers through a real server, and what must come of it.

Runs of several holders, also those that were replaced long ago, begin and commit transactions under few writer ids,
some under a name that was used before, some two at a time; holders are reset; producers that committed nothing are
forgotten, by steps of the walk alone; the server is killed, also while it carries a request out. Each answer is
compared with that of a model, which is written from the rules alone.
"""

import asyncio
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from random import Random

from millrace.model.producer import FENCED_RUNS_COUNT_MAX, NO_HOLDER, NO_RUN, Producer
from millrace.model.transaction import TransactionState
from millrace.server.app import Server
from millrace.server.container.options import ContainerOptions
from millrace.server.kinds.producers.unused import UnusedProducers
from millrace.server.kinds.transactions.options import TransactionsOptions
from millrace.wire import messages as m
from tests.support.files import MemoryFileSystem
from tests.support.protocol import Peer, RefusedError
from tests.support.servers import server_options
from tests.support.transactions import PeerTransaction, begin_request, content_of, create_stream, reserve

STREAM = "a/b"
WRITER_IDS = ("w0", "w1")
OK, JOINED, AGAIN = "OK", "JOINED", "AGAIN"


@dataclass
class ModelProducer:
    """What the rules say is known of a writer id."""

    holder: str = NO_HOLDER
    run: str = NO_RUN
    last: int = -1
    replaced: list[str] = field(default_factory=list)

    def take(self, claim: Producer) -> None:
        if self.run not in {claim.run, NO_RUN}:
            self.replaced.append(self.run)
        self.holder, self.run = claim.holder, claim.run


@dataclass
class ModelTransaction:
    """What the rules say a transaction is."""

    claim: Producer | None
    name: str
    state: str = "open"


class Model:
    """What the server must answer; outcomes are texts, those of refusals the names of their codes."""

    def __init__(self) -> None:
        self.producers: dict[str, ModelProducer] = {}
        self.transactions: dict[int, ModelTransaction] = {}
        self.names: dict[str, int] = {}
        self.stored: list[int] = []

    def take_over(self, claim: Producer | None) -> None:
        """Carry out of a beginning what is durable first."""
        if claim is not None:
            self._claim(claim)

    def begin(self, number: int, name: str, claim: Producer | None) -> tuple[str, int]:
        found = self.names.get(name, 0)
        of_name = self.transactions.get(found)
        is_committed = of_name is not None and of_name.state == "committed"
        refusal = self._claim(claim) if claim is not None else ""
        if is_committed:
            return "TRANSACTION_COMMITTED", 0
        if refusal:
            return refusal, 0
        if of_name is not None and of_name.state == "open":
            theirs = of_name.claim
            is_replaced = theirs and claim and theirs.writer_id == claim.writer_id and theirs.run != claim.run
            if not is_replaced:
                return (JOINED, found) if claim is None or claim == theirs else ("INVALID_ARGUMENT", 0)
            of_name.name = ""
        self.transactions[number] = ModelTransaction(claim, name)
        if name:
            self.names[name] = number
        return OK, number

    def _claim(self, claim: Producer) -> str:
        producer = self.producers.get(claim.writer_id) or ModelProducer()
        if claim.run in producer.replaced[-FENCED_RUNS_COUNT_MAX:]:
            return "PRODUCER_FENCED"
        if producer.holder not in {NO_HOLDER, claim.holder}:
            return "PRODUCER_HELD"
        self.producers[claim.writer_id] = producer
        producer.take(claim)
        return "PRODUCER_COMMITTED" if claim.sequence <= producer.last else ""

    def commit(self, number: int) -> tuple[str, int]:
        transaction = self.transactions[number]
        claim = transaction.claim
        if transaction.state == "committed":
            return AGAIN, 0
        if claim is not None:
            producer = self.producers[claim.writer_id]
            refusal = "PRODUCER_COMMITTED" if claim.sequence <= producer.last else ""
            refusal = "PRODUCER_FENCED" if claim.run != producer.run else refusal
            if refusal:
                transaction.state = "aborted"
                return refusal, 0
        if transaction.state == "aborted":
            return "TRANSACTION_ABORTED", 0
        if claim is not None:
            self.producers[claim.writer_id].last = claim.sequence
        transaction.state = "committed"
        self.stored.append(number)
        return OK, 0

    def abort(self, number: int) -> tuple[str, int]:
        transaction = self.transactions[number]
        if transaction.state == "committed":
            return "TRANSACTION_COMMITTED", 0
        was_open, transaction.state = transaction.state == "open", "aborted"
        return (OK if was_open else AGAIN), 0

    def forget(self) -> None:
        """Forget the producers that committed nothing, and have no open transaction."""
        opened = {each.claim.writer_id for each in self.transactions.values() if each.claim and each.state == "open"}
        for writer_id, producer in list(self.producers.items()):
            if producer.last < 0 and not producer.replaced and writer_id not in opened:
                del self.producers[writer_id]

    def reset(self, writer_id: str, expected: str, holder: str) -> tuple[str, int]:
        producer = self.producers.get(writer_id)
        if producer is None:
            return "PRODUCER_UNKNOWN", 0
        if producer.holder == holder:
            return AGAIN, 0
        if producer.holder != expected:
            return "PRODUCER_HELD", 0
        if producer.run != NO_RUN:
            producer.replaced.append(producer.run)
        producer.holder, producer.run, producer.last = holder, NO_RUN, -1
        return OK, 0


Operation = Callable[[Model], tuple[str, int]]
WalkRequest = m.BeginTransaction | m.CommitTransaction | m.AbortTransaction | m.ResetProducer
IN_FLIGHT_TURNS_MAX = 12
"""Turns of the loop, at most, that a request gets before the server is killed."""


class ProducerWalk:
    """One walk.

    Attributes:
        seen: how often each outcome was met.
    """

    def __init__(self, seed: int, *, folder: Path, container: ContainerOptions) -> None:
        self._choices = Random(seed)
        self._options = server_options(folder, container=container, transactions=TransactionsOptions(tick_s=1e6))
        self._files = MemoryFileSystem()
        self._model = Model()
        self._runs: list[tuple[str, str]] = [("h0", "r0")]
        self._open: dict[int, PeerTransaction] = {}
        self._ids: list[int] = []
        self._writer: m.WriterOpened
        # What was under way when the server was killed: the transaction it is about, and what may have become of it.
        self._unknown: tuple[list[int], list[Model]] | None = None
        self.seen: dict[str, int] = {}

    async def run(self, *, steps: int) -> None:
        """Walk so many steps; raise AssertionError if an answer is none that the rules allow."""
        is_new = True
        while steps > 0:
            async with (
                Server(self._options, files=self._files) as server,
                await Peer.connect(server.address) as peer,
            ):
                if is_new:
                    await create_stream(peer, STREAM, 1)
                    is_new = False
                await self._continue(peer)
                for _ in range(min(steps, self._choices.randint(5, 30))):
                    await self._step(peer)
                    if self._choices.random() < 0.2:
                        await self._forget(server, peer)
                    steps -= 1
                if self._choices.random() < 0.7:
                    await self._leave_under_way(peer)
                killed = self._files.copy()
            killed.crash(self._choices.randrange(1 << 30))
            self._files = killed
        async with Server(self._options, files=self._files) as server, await Peer.connect(server.address) as peer:
            await self._continue(peer)

    async def _continue(self, peer: Peer) -> None:
        """Go on with a server that has just started: it knows all that was answered."""
        self._ids = await reserve(peer, 1000)
        self._writer = await peer.open_writer("")
        for transaction in self._open.values():
            transaction.peer = peer
        if self._unknown is not None:
            numbers, models = self._unknown
            self._unknown = None
            fitting = [model for model in models if await self._fits(peer, model, *numbers)]
            assert fitting, "what was under way was carried out in part"
            self._model = fitting[0]
            outcome = f"UNKNOWN {models.index(fitting[0])}"
            self.seen[outcome] = self.seen.get(outcome, 0) + 1
        assert await self._fits(peer, self._model)

    async def _leave_under_way(self, peer: Peer) -> None:
        """Send a request, and know what may have become of it when the server is killed now, or soon."""
        message, operation = self._chosen()
        carried_out = deepcopy(self._model)
        operation(carried_out)
        models = [self._model, carried_out]
        if isinstance(message, m.BeginTransaction) and message.producers:
            taken_over = deepcopy(self._model)
            taken_over.take_over(Producer(*message.producers[0]))
            models.append(taken_over)
        about = [] if isinstance(message, m.ResetProducer) else [message.number]
        self._unknown = about, models
        await peer.start(message)
        for _ in range(self._choices.randrange(IN_FLIGHT_TURNS_MAX)):
            await asyncio.sleep(0)

    async def _forget(self, server: Server, peer: Peer) -> None:
        known = len(self._model.producers)
        self._model.forget()
        self.seen["FORGOTTEN"] = self.seen.get("FORGOTTEN", 0) + known - len(self._model.producers)
        await server.services.get(UnusedProducers).forget()
        assert await self._agrees(peer, self._model)

    async def _step(self, peer: Peer) -> None:
        operations = [self._chosen() for _ in range(self._choices.choice((1, 1, 1, 2)))]
        ids = [await peer.start(message) for message, _ in operations]
        outcomes = [await self._outcome(peer, each) for each in ids]
        for outcome, _ in outcomes:
            self.seen[outcome] = self.seen.get(outcome, 0) + 1
        ended = [each.number for each, _ in operations if isinstance(each, m.CommitTransaction | m.AbortTransaction)]
        # What was under way at one time was carried out in some order.
        allowed = []
        for order in permutations(range(len(operations))):
            model = deepcopy(self._model)
            expected = {index: operations[index][1](model) for index in order}
            allowed.append([expected[index] for index in range(len(operations))])
            if allowed[-1] == outcomes and await self._fits(peer, model, *ended):
                self._model = model
                break
        else:
            raise AssertionError(f"{[message for message, _ in operations]}: {outcomes}, and allowed are {allowed}")
        for (outcome, number), (message, _) in zip(outcomes, operations, strict=True):
            if outcome == OK and isinstance(message, m.BeginTransaction):
                await self._fill(peer, number)

    def _chosen(self) -> tuple[WalkRequest, Operation]:
        """Return a request, and what the model does for it."""
        choices = self._choices
        kinds = ("begin", "commit", "reset", "outdated reset", "abort")
        kind = choices.choices(kinds, weights=(8, 8, 1, 0.5, 0.5))[0]
        if kind == "abort" and self._open:
            number = choices.choice(list(self._open)[-4:])
            return m.AbortTransaction(number, ""), lambda model: model.abort(number)
        if kind in {"commit", "abort"} and self._open:
            # Most often one of the last, at times one that was decided long ago.
            numbers = list(self._open)
            number = choices.choice(numbers[-4:] if choices.random() < 0.8 else numbers)
            request = self._open[number].commit_request(0)
            return request, lambda model: model.commit(number)
        writer_id = choices.choice(WRITER_IDS)
        known = self._model.producers.get(writer_id) or ModelProducer()
        if kind.endswith("reset"):
            holder = choices.choice(("", "h0", "h1", "h2"))
            expected = known.holder if kind == "reset" else "h9"
            reset = m.ResetProducer(producer_id=writer_id, expected_holder=expected, holder=holder)
            return reset, lambda model: model.reset(writer_id, expected, holder)
        claim = self._claim(writer_id, known) if choices.random() < 0.95 else None
        number = self._ids.pop(0)
        name = f"{writer_id}-{choices.randrange(8)}" if choices.random() < 0.5 else ""
        begin = begin_request(number, STREAM, name=name, producer=claim)
        return begin, lambda model: model.begin(number, name, claim)

    def _claim(self, writer_id: str, known: ModelProducer) -> Producer:
        choices = self._choices
        draw = choices.random()
        if draw < 0.55 and known.run:
            holder, run = known.holder, known.run
        elif draw < 0.75:
            holder, run = known.holder or f"h{choices.randrange(3)}", f"r{len(self._runs)}"
            self._runs.append((holder, run))
        elif draw < 0.95:
            holder, run = choices.choice(self._runs[-6:])
        else:
            holder, run = f"h{choices.randrange(3)}", f"r{len(self._runs)}"
            self._runs.append((holder, run))
        return Producer(writer_id, holder, run, max(0, known.last + choices.choice((1, 1, 1, 2, 5, 0, -1, -3))))

    async def _outcome(self, peer: Peer, request_id: int) -> tuple[str, int]:
        """Return what came of a request, and which transaction began or was joined."""
        try:
            reply = await peer.reply(request_id, m.Message)
        except RefusedError as error:
            return error.code.name, 0
        assert isinstance(reply, m.TransactionReply | m.Done)
        if isinstance(reply, m.TransactionReply) and reply.state == TransactionState.OPEN:
            return (OK if reply.changed else JOINED), reply.number
        return (OK if reply.changed else AGAIN), 0

    async def _fill(self, peer: Peer, number: int) -> None:
        info = await peer.ask(m.GetTransaction(number, ""), m.TransactionInfo)
        begun = m.TransactionReply(
            number=number, state=info.state, changed=0, decided_us=0, streams=info.streams, cuts=[], tails=[]
        )
        transaction = PeerTransaction(peer, begun, self._writer, self._ids)
        await transaction.write(b"%d;" % number)
        self._open[number] = transaction

    async def _agrees(self, peer: Peer, model: Model) -> bool:
        """Return whether the server knows of every producer what a model does."""
        for writer_id in WRITER_IDS:
            known = model.producers.get(writer_id)
            expected = known and replace(known, replaced=known.replaced[-FENCED_RUNS_COUNT_MAX:])
            if await self._row(peer, writer_id) != expected:
                return False
        return True

    async def _row(self, peer: Peer, writer_id: str) -> ModelProducer | None:
        try:
            info = await peer.ask(m.GetProducer(writer_id), m.ProducerInfo)
        except RefusedError:
            return None
        return ModelProducer(info.holder, info.run, info.last_sequence, [run for (run,) in info.fenced])

    async def _fits(self, peer: Peer, model: Model, *numbers: int) -> bool:
        """Return whether all that is known, and some transactions, are as a model says."""
        for number in numbers:
            info = await peer.ask(m.GetTransaction(number, ""), m.TransactionInfo)
            expected = model.transactions.get(number)
            is_open, is_committed = info.state == TransactionState.OPEN, info.state == TransactionState.COMMITTED
            state = "" if expected is None else expected.state
            if (is_open, is_committed) != (state == "open", state == "committed"):
                return False
        found = b"".join((await content_of(peer, STREAM)).values())
        stored = b"".join(b"%d;" % each for each in model.stored)
        return found == stored and await self._agrees(peer, model)
