"""Some seconds of transactions over streams that are scaled, truncated and killed, and the proof at their end.

What happens is drawn by dice, but for what the leases do; the moments are those of the machine. So the same seed gives
the same kind of life, and not the same instant of each kill.
"""

import asyncio
import random
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import millrace
from millrace.client.client import Client
from tests.crash import producing
from tests.crash.elastic.life import Consumer, always
from tests.crash.elastic.seen import Seen, has_passed
from tests.crash.patience import PATIENT
from tests.crash.processes import kill
from tests.crash.recorded_reads import RecordedRead, record_lineage, recorded_cut
from tests.crash.torture import Server
from tests.crash.transactions.accounting import Books
from tests.crash.transactions.chain import COOKED, CURSOR, RAW
from tests.crash.transactions.cuts import CutReader, take_cuts
from tests.crash.transactions.faults import scale_once
from tests.crash.transactions.lanes import STREAMS
from tests.crash.transactions.process import ROOT, ClientProcess
from tests.crash.transactions.queries import check_batches, recorded_producer
from tests.crash.transactions.recorded import recorded_outcome
from tests.support.history import Recorder, demand, read_lines

ALL: Final = (*STREAMS, RAW, COOKED)
WORKERS: Final = 2
LANES: Final = 6
DECIDERS: Final = 2
CHAINS: Final = 2
QUERIES: Final = 2
PRODUCERS: Final = ("query-a", "query-b")
"""Writer ids of all queries: each process is each of them, twice."""
KEYS_OF_PRODUCERS: Final = {"raw": 7, "beside": 3}
LOOKERS: Final = 2
PATIENCE_S: Final = 300.0
"""Beyond the time of the life itself: after so long something waits for what never comes."""
DECISIONS: Final = (("commit", "abort"), ("abort", "commit"), ("commit", "commit"), ("abort", "abort"))


@dataclass
class Decisions:
    """What the deciders were asked, and what each was told of a transaction.

    Attributes:
        waiting: of each decider, the lines that it has not answered, by the name of the transaction.
        told: the outcomes of each name.
    """

    waiting: list[dict[str, str]] = field(default_factory=lambda: [{} for _ in range(DECIDERS)])
    told: dict[str, set[str]] = field(default_factory=dict)
    all_told: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._note_all_told()

    def note(self, decider: int, name: str, outcome: str) -> None:
        """Take the answer of a decider.

        Raises:
            AssertionError: another one was told otherwise.
        """
        self.waiting[decider].pop(name, None)
        self.told[name].add(outcome)
        assert len(self.told[name]) == 1, f"{name} is {self.told[name]}"
        self._note_all_told()

    def ask(self, name: str, lines: Sequence[str]) -> None:
        """Note that each decider is asked a line about a transaction."""
        self.told[name] = set()
        for waiting, line in zip(self.waiting, lines, strict=True):
            waiting[name] = line
        self._note_all_told()

    def _note_all_told(self) -> None:
        if any(self.waiting):
            self.all_told.clear()
        else:
            self.all_told.set()


@dataclass
class Life(ABC):
    """One life of some streams.

    Attributes:
        seconds: so long the server lives, in all of its lives together, once all clients have begun.
        histories: a folder, in which each process records its part of the history.
        counted: what happened, and how often.
        story: the faults so far, in order.
        clients: the client processes.
        has_begun: whether all of these have.
    """

    server: Server
    dice: random.Random
    seconds: float
    histories: Path
    counted: Counter[str] = field(default_factory=Counter)
    story: list[str] = field(default_factory=list)
    clients: list[ClientProcess] = field(default_factory=list)
    has_begun: bool = False
    consumers: dict[str, Consumer] = field(default_factory=dict)
    events: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: {stream: [] for stream in ALL})
    decisions: Decisions = field(default_factory=Decisions)

    def __post_init__(self) -> None:
        self.histories.mkdir(parents=True)
        self._recorder = Recorder("life", self.histories / "life.jsonl")
        self._next_numbers: dict[str, int] = {}
        self._deciders: list[ClientProcess] = []
        self._is_disturbed = True
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Live it. Whoever sees what must not be raises AssertionError, with the faults so far as a note."""
        try:
            await self._live()
        except BaseException as error:
            error.add_note(f"faults, in order: {' '.join(self.story)}")
            raise

    async def _live(self) -> None:
        async with (
            asyncio.timeout(10 * self.seconds + PATIENCE_S),
            self.entrance() as self._address,
            millrace.connect(self._address, options=PATIENT) as client,
        ):
            heads = {}
            for stream in ALL:
                count = self.dice.randint(1, 3)
                scaling = millrace.ScalingPolicy.fixed(count)
                await client.create_stream(stream, millrace.StreamConfig(scaling=scaling))
                heads[stream] = await client.stream_cut(stream).head()
                self.consumers[stream] = Consumer(Seen(stream), always(heads[stream]))
            cuts = [
                CutReader(
                    client, self._recorder, STREAMS, {name: heads[name] for name in STREAMS}, self.counted,
                    reads_together=reads_together,
                )
                for reads_together in (False, True)
            ]  # fmt: skip
            async with asyncio.TaskGroup() as reading:
                for consumer in self.consumers.values():
                    reading.create_task(self._consume(client, consumer), name=consumer.seen.name)
                async with asyncio.TaskGroup() as disturbing:
                    disturbing.create_task(self._scale(client), name="scale")
                    disturbing.create_task(self._truncate(client, cuts), name="truncate")
                    disturbing.create_task(self.fail(client), name="fail")
                    for reader in cuts:
                        disturbing.create_task(self._read_cuts(reader), name="cuts")
                    for number in range(LOOKERS):
                        disturbing.create_task(self._look(client, f"looker-{number}"), name="look")
                    disturbing.create_task(self._list(client), name="list")
                    await self._write()
                    self._is_disturbed = False
                await self._end(client)
            await self._check(client)

    @property
    def is_over(self) -> bool:
        """Whether clients are to end."""
        return self._over.is_set()

    def end(self) -> None:
        """Begin the end of the life."""
        self._over.set()

    @abstractmethod
    def entrance(self) -> AbstractAsyncContextManager[str]:
        """Return what yields the address where clients connect."""

    @abstractmethod
    async def fail(self, client: Client) -> None:
        """Cause faults, and note them in the story, until the life is over; then end it."""

    # --- the clients in processes of their own ---

    async def _write(self) -> None:
        """Let all processes live until it is over, those first whose work the others end."""
        over = {role: asyncio.Event() for role in ("writing", "decider", "chain")}
        self._deciders = [self._decider(number) for number in range(DECIDERS)]
        writers = [self._worker(number) for number in range(WORKERS)] + [
            self._query(number) for number in range(QUERIES)
        ]
        chains = [self._process("chain", f"chain-{number}") for number in range(CHAINS)]
        self.clients += [*chains, *self._deciders, *writers]
        async with asyncio.TaskGroup() as tasks:
            for chain in chains:
                tasks.create_task(chain.run(over["chain"]), name=chain.name)
            for decider in self._deciders:
                tasks.create_task(decider.run(over["decider"]), name=decider.name)
            async with asyncio.TaskGroup() as writing:
                for writer in writers:
                    writing.create_task(writer.run(over["writing"]), name=writer.name)
                writing.create_task(self._produce("raw", RAW), name="raw")
                writing.create_task(self._produce("beside", STREAMS[0]), name="beside")
                for each in self.clients:  # a busy machine takes long to start them
                    await each.has_begun.wait()
                self.has_begun = True
                await self._over.wait()
                over["writing"].set()
            await self.decisions.all_told.wait()
            over["decider"].set()
            over["chain"].set()
        for each in self.clients:
            self.counted[f"times a {each.role} was killed"] += each.kills

    def _process(self, role: str, name: str) -> ClientProcess:
        dice = random.Random(self.dice.random())
        return ClientProcess(role, name, self._address, self.histories, dice, self._hear)

    def _worker(self, number: int) -> ClientProcess:
        worker = self._process("worker", f"worker-{number}")
        names = [f"lane-{number}-{lane}" for lane in range(LANES)]
        worker.arguments = lambda: [f"{name}={self._next_numbers.get(name, 0)}" for name in names]
        return worker

    def _query(self, number: int) -> ClientProcess:
        query = self._process("query", f"query-{number}")
        query.arguments = lambda: PRODUCERS * 2
        return query

    def _decider(self, number: int) -> ClientProcess:
        decider = self._process("decider", f"decider-{number}")
        waiting = self.decisions.waiting[number]
        decider.resume = waiting.values

        def hear(_: str, name: str, outcome: str) -> None:
            self.decisions.note(number, name, outcome)
            self.counted["decisions told"] += 1

        decider.hear = hear
        return decider

    def _hear(self, verb: str, *words: str) -> None:
        match verb, words:
            case "at", (lane, number):
                self._next_numbers[lane] = int(number)
            case "decide", (name, number, branch):
                self._let_decide(name, number, branch)
            case _:
                self.counted[verb] += 1

    def _let_decide(self, name: str, number: str, branch: str) -> None:
        """Let all deciders end one transaction at the same time, each in a way of its own."""
        assert name not in self.decisions.told
        # Once it is aborted, its name would be that of another one: the next life leaves it alone.
        lane, _, count = name.partition("/")
        self._next_numbers[lane] = int(count) + 1
        self.counted["handed over"] += 1
        verbs = self.dice.choices(DECISIONS, [4, 4, 1, 1])[0]
        lines = [f"{verb} {name} {number} {branch}" for verb in verbs]
        self.decisions.ask(name, lines)
        for decider, line in zip(self._deciders, lines, strict=True):
            decider.tell(line)

    async def _produce(self, name: str, stream: str) -> None:
        """Let a producer write under sequences of its own, in one process after the other, some of them killed."""
        dice = random.Random(self.dice.random())
        count = life = 0
        is_complete = True
        while not (is_complete and self.is_over):
            life += 1
            count += dice.randint(100, 1000) if is_complete else 0
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", producing.__name__, self._address, stream, name,
                str(KEYS_OF_PRODUCERS[name]), str(count), str(dice.random()),
                str(self.histories / f"{name}-{life}.jsonl"),
                stdout=asyncio.subprocess.DEVNULL, cwd=ROOT,
            )  # fmt: skip
            try:
                if dice.random() < 0.3 and not self.is_over:
                    await asyncio.sleep(dice.uniform(0.3, 1.5))
                    kill(process.pid)
                code = await process.wait()
            finally:
                if process.returncode is None:
                    kill(process.pid)
            assert code in {0, -9}, f"{name} failed by itself: {code}"
            is_complete = code == 0
            self.counted["producers killed"] += not is_complete
            # To start a process costs more than all that it does here.
            await asyncio.sleep(dice.random() * 2.0)

    # --- disturbing ---

    async def _scale(self, client: Client) -> None:
        dice = random.Random(self.dice.random())
        while not self.is_over:
            await scale_once(client, dice.choice((*STREAMS, *ALL)), dice, self.counted)
            await asyncio.sleep(dice.random() * 0.25)

    async def _truncate(self, client: Client, cuts: Sequence[CutReader]) -> None:
        """Truncate at places of readers that all others have passed."""
        dice = random.Random(self.dice.random())
        while not self.is_over:
            await asyncio.sleep(dice.random() * 0.5)
            stream = dice.choice(STREAMS)
            places = [self.consumers[stream].place(), *(reader.places[stream] for reader in cuts)]
            info = await client.stream_info(stream)
            if any(place.places.keys() - info.lineage().by_id.keys() for place in places):
                continue  # it was truncated meanwhile
            for cut in places:
                progress = info.progress(cut)
                if all(has_passed(info, place, progress) for place in places):
                    call = self._recorder.call("truncate", "truncate", stream=stream, cut=recorded_cut(cut))
                    await client.truncate_stream(stream, cut)
                    self._recorder.answer(call, "done")
                    self.counted["truncated"] += 1
                    break

    async def _list(self, client: Client) -> None:
        """Ask all the time which transactions are open or prepared: each is in the list once."""
        dice = random.Random(self.dice.random())
        while not self.is_over:
            numbers = [listed.number async for listed in client.list_transactions()]
            assert numbers == sorted(set(numbers))
            await asyncio.sleep(dice.random() * 0.2)

    # --- reading ---

    async def _consume(self, client: Client, consumer: Consumer) -> None:
        """Read a stream from its head until it is sealed."""
        stream = consumer.seen.name
        read = RecordedRead(self._recorder, f"reader of {stream}", stream)
        async with client.reader(stream) as reader:
            consumer.place = reader.position
            async for event in reader:
                value = event.value.decode()
                read.take(value, segment=event.segment, offset=event.offset, index=event.index)
                self.events[stream].append((event.key or "", value))
            end = reader.position()
            read.end(end, is_tail=True)
        # Once more, after all that anybody was told: what is not there now is lost.
        read = RecordedRead(self._recorder, f"reader of {stream}", stream, start=end)
        async with client.reader(stream, start=end) as reader:
            assert not [event async for event in reader], f"{stream} continues after its end"
        read.end(end, is_tail=True)

    async def _read_cuts(self, cuts: CutReader) -> None:
        dice = random.Random(self.dice.random())
        while self._is_disturbed:
            await cuts.step()
            await asyncio.sleep(dice.random() * 0.2)
        await cuts.step()

    async def _look(self, client: Client, name: str) -> None:
        """Take cuts of some of all streams, which readers of others may contradict."""
        dice = random.Random(self.dice.random())
        while not self.is_over:
            await take_cuts(client, self._recorder, name, dice.sample(ALL, dice.randint(1, len(ALL))))
            self.counted["cuts taken"] += 1
            await asyncio.sleep(dice.random() * 0.1)

    # --- at the end ---

    async def _end(self, client: Client) -> None:
        """Seal all streams. That aborts what was left open; what was prepared is decided."""
        listed = [each async for each in client.list_transactions()]
        undecided = [each.name for each in listed if each.state is millrace.TransactionState.PREPARED]
        assert not undecided, f"{undecided} are prepared, and were handed over to nobody"
        self.counted["left open"] = len(listed)
        for stream in ALL:
            await client.seal_stream(stream)
        cursor = await client.cursors(RAW).get(CURSOR)
        left = await client.distance(cursor or millrace.HEAD, millrace.TAIL, stream=RAW)
        assert not left.events, f"{left} of the raw stream were moved on by nobody"

    async def _check(self, client: Client) -> None:
        epochs = 0
        for stream in ALL:
            history = await client.stream_history(stream)
            record_lineage(self._recorder, stream, history)
            epochs += history[-1].number
        self.counted["epochs by commits"] = epochs - self.counted["scaled by hand"]
        outcomes, producers = await self._outcomes(client), await self._producers(client)
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.start)
        assert await self._outcomes(client) == outcomes, "an outcome is another after a restart"
        assert await self._producers(client) == producers, "a producer is another after a restart"
        for name, told in self.decisions.told.items():
            assert outcomes[name][1] in told, f"{name} is {outcomes[name]}, and was told to be {told}"
        self._recorder.close()
        verdict = await asyncio.to_thread(demand, read_lines(self.histories))
        assert not verdict.counts["unread"], str(verdict)
        assert verdict.counts["acknowledged"] > 0
        books = await asyncio.to_thread(lambda: Books.of(read_lines(self.histories)))
        for state, count in books.check(self.events).items():
            self.counted[f"transactions {state}"] = count
        self._check_chain()
        self.counted += check_batches({stream: self.events[stream] for stream in STREAMS}, producers)
        self.counted["events"] = sum(map(len, self.events.values()))

    async def _outcomes(self, client: Client) -> dict[str, tuple[int, str]]:
        """Return how each name ended."""
        found = {}
        for name in sorted(Books.of(read_lines(self.histories)).names):
            outcome = await recorded_outcome(self._recorder, client, "outcomes", name)
            found[name] = outcome.number, str(outcome.state)
        return found

    async def _producers(self, client: Client) -> list[millrace.ProducerInfo]:
        """Return what is known of each producer that has ever begun."""
        found = [await recorded_producer(self._recorder, client, "outcomes", writer) for writer in PRODUCERS]
        return [each for each in found if each is not None]

    def _check_chain(self) -> None:
        """Assert that the cooked stream has each event of the raw one, once, those of a key in their order."""
        raw = self.events[RAW]
        cooked = [(key, value.split("/", 5)[5]) for key, value in self.events[COOKED]]
        for key in {key for key, _ in (*raw, *cooked)}:
            before, after = ([value for each, value in events if each == key] for events in (raw, cooked))
            assert before == after, f"of key {key} {before} was made {after}"
