"""A writer and a server that answers, in any order of everything that can happen."""

# Nobody needs to look at the future of a write: flush and leaving the writer raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
from collections import defaultdict
from collections.abc import Awaitable
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millrace.client.write.events import WriteResult
from millrace.client.write.options import WriterOptions
from millrace.client.write.writer import Writer
from millrace.wire.errors import ErrorCode
from tests.support.examples import examples
from tests.support.model_server import STREAM, ModelServer, turns

T = TypeVar("T")
KEYS = [None, "a", "b", "c", "d", "e"]


class WriterMachine(RuleBasedStateMachine):
    """Writes, answers, lost acks, refusals, lost connections and scales in any order.

    Every event is stored once, those of a key in the order written; every future resolves, those of a key in the order
    written (behaviours 2, 3, 22, 88).
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.number = 0
        self.written: dict[str, list[bytes]] = defaultdict(list)
        self.unkeyed: list[bytes] = []
        self.resolved: dict[str, list[int]] = defaultdict(list)
        self.futures: dict[str, list[asyncio.Future[WriteResult]]] = defaultdict(list)

    def run(self, body: Awaitable[T]) -> T:
        async def within() -> T:
            return await body

        return self.loop.run_until_complete(within())

    @initialize(segments=st.integers(1, 3), in_flight=st.sampled_from([1, 600, 1 << 20]), appends=st.integers(1, 5))
    def open(self, segments: int, in_flight: int, appends: int) -> None:
        self.server = ModelServer(segment_count=segments)
        self.server.appends_in_flight_max = appends

        async def opened() -> Writer:
            options = WriterOptions(block_size_bytes=1024, in_flight_bytes_max=in_flight, delivery_timeout_s=1e6)
            self.channel = self.server.channel()
            writer = Writer(self.channel, STREAM, writer_id="w", options=options)
            await writer.open()
            return writer

        self.writer = self.run(opened())

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=8), size=st.sampled_from([1, 300]))
    def write(self, keys: list[str | None], size: int) -> None:
        async def written() -> None:
            for key in keys:
                self.note(key, self.writer.write(self.value(key, size), key=key))

        self.run(written())

    @rule(key=st.sampled_from(KEYS), count=st.integers(1, 4))
    def write_block(self, key: str | None, count: int) -> None:
        async def written() -> None:
            values = [self.value(key, 10) for _ in range(count)]
            self.note(key, self.writer.write_many(values, key=key))

        self.run(written())

    @rule(keys=st.lists(st.sampled_from(KEYS[1:]), min_size=1, max_size=5))
    def write_block_of_keys(self, keys: list[str]) -> None:
        async def written() -> None:
            future = self.writer.write_many([self.value(key, 10) for key in keys], keys=keys)
            for key in dict.fromkeys(keys):
                self.note(key, future)

        self.run(written())

    @rule()
    def turn(self) -> None:
        self.run(turns())

    @rule(number=st.integers(1, 5), heard=st.booleans())
    def answer(self, number: int, *, heard: bool) -> None:
        async def answered() -> None:
            self.server.answer(number, heard=heard)
            if not heard:
                self.server.lose()

        self.run(answered())

    @rule(
        code=st.sampled_from([ErrorCode.THROTTLED, ErrorCode.OUTCOME_UNKNOWN, ErrorCode.SEGMENT_SEALED]),
        stored=st.booleans(),
    )
    def refuse(self, code: ErrorCode, *, stored: bool) -> None:
        async def refused() -> None:
            if self.server.arrived:
                stored_all_the_same = stored and code is ErrorCode.OUTCOME_UNKNOWN
                self.server.refuse(code, retriable=code is ErrorCode.THROTTLED, stored=stored_all_the_same)

        self.run(refused())

    @rule()
    def lose(self) -> None:
        async def lost() -> None:
            self.server.lose()

        self.run(lost())

    @rule(down=st.booleans())
    def change_reachability(self, *, down: bool) -> None:
        self.server.down = down

    @rule(choice=st.integers(0, 10), parts=st.integers(1, 3))
    def scale(self, choice: int, parts: int) -> None:
        opened = self.server.open_ids()
        first = choice % len(opened)
        self.server.replace(opened[first : first + 1 + choice // 4], parts)

    @rule(duration_s=st.sampled_from([0.05, 1.0, 5.0]))
    def wait(self, duration_s: float) -> None:
        self.run(self.server.clock.advance(duration_s))

    @invariant()
    def futures_of_a_key_resolve_in_order(self) -> None:
        for numbers in self.resolved.values():
            assert numbers == list(range(len(numbers)))

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            self.run(self.finish())
            self.futures_of_a_key_resolve_in_order()
            stored: dict[str | None, list[bytes]] = defaultdict(list)
            for key, value in self.server.events():
                stored[key].append(value)
            assert sorted(stored.pop(None, [])) == sorted(self.unkeyed)
            assert stored == {key: values for key, values in self.written.items() if values}
            assert {key: len(each) for key, each in self.futures.items()} == {
                key: len(each) for key, each in self.resolved.items()
            }
        self.loop.close()

    async def finish(self) -> None:
        """Let the server answer all that comes, until all is durable."""
        self.server.down = False
        flushing = asyncio.create_task(self.writer.flush())
        for _ in range(500):
            await turns(5)
            self.server.answer()
            if flushing.done():
                break
            self.server.clock.move(1.0)
        assert flushing.done()
        await flushing
        await turns()
        assert self.writer.pending_bytes == 0
        assert self.writer.statistics().in_flight_bytes == 0
        assert sum(self.writer.last_event_numbers.values()) == self.number
        await self.writer.close()
        await self.channel.close()

    def value(self, key: str | None, size: int) -> bytes:
        self.number += 1
        value = b"%06d" % self.number + b"x" * size
        (self.unkeyed if key is None else self.written[key]).append(value)
        return value

    def note(self, key: str | None, future: "asyncio.Future[WriteResult]") -> None:
        if key is not None:
            place = len(self.futures[key])
            self.futures[key].append(future)
            future.add_done_callback(lambda _: self.resolved[key].append(place))


TestWriterMachine = WriterMachine.TestCase
TestWriterMachine.settings = settings(max_examples=examples(20), stateful_step_count=40, deadline=None)
