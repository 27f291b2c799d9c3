"""The cache against a model, whatever happens in whatever order."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.server.cache import Fetch
from millrace.server.errors import StorageError
from tests.server.cache.pages import PAGE, cache_of, content, read_of, settled
from tests.support.examples import examples


@dataclass(slots=True, eq=False)
class PendingFetch:
    segment_id: int
    offset: int
    size: int
    answer: asyncio.Future[bytes]


@dataclass(slots=True, eq=False)
class RunningRead:
    segment_id: int
    offset: int
    size: int
    task: asyncio.Task[list[memoryview]]


class CacheMachine(RuleBasedStateMachine):
    """Readers, fetches that answer when and how it pleases them, and everything else in between.

    The model is the segments themselves: whatever is answered must be their bytes, and at least one.
    """

    segments = st.integers(1, 2)
    offsets = st.integers(0, 12 * PAGE)
    sizes = st.one_of(st.integers(1, 100), st.integers(1, 5 * PAGE))
    end = 16 * PAGE

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.fetches: list[PendingFetch] = []
        self.reads: list[RunningRead] = []
        self.failed: set[tuple[int, int]] = set()
        # Segments whose fetches were discarded at some time: those may overlap newer ones.
        self.discarded: set[int] = set()
        self.cache = cache_of(pages=6, fetches_max=3, readers_max=4, read_ahead_share=0.5)

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        async def step() -> None:
            await work()
            await settled()

        self.loop.run_until_complete(step())
        for pending in [pending for pending in self.reads if pending.task.done()]:
            self.reads.remove(pending)
            self.judge(pending)

    def judge(self, pending: RunningRead) -> None:
        if pending.task.cancelled():
            return
        error = pending.task.exception()
        if error is not None:
            assert isinstance(error, StorageError)
            assert (pending.segment_id, pending.offset) in self.failed
            return
        data = b"".join(pending.task.result())
        assert 0 < len(data) <= pending.size
        assert data == content(pending.offset, len(data))

    def fetch_of(self, segment_id: int) -> Fetch:
        def fetch(offset: int, size: int) -> Coroutine[Any, Any, bytes]:
            assert 0 < size <= PAGE
            assert offset + size <= self.end
            for other in self.fetches:
                if other.segment_id == segment_id and segment_id not in self.discarded:
                    assert offset + size <= other.offset or other.offset + other.size <= offset, "fetched twice"
            assert len(self.fetches) < 3
            pending = PendingFetch(segment_id, offset, size, self.loop.create_future())
            self.fetches.append(pending)

            async def answer() -> bytes:
                try:
                    return await pending.answer
                finally:
                    self.fetches.remove(pending)

            return answer()

        return fetch

    @rule(segment_id=segments, offset=offsets, size=sizes)
    def start_read(self, segment_id: int, offset: int, size: int) -> None:
        async def work() -> None:
            task = asyncio.ensure_future(
                read_of(self.cache, segment_id, offset, size, self.fetch_of(segment_id), end=self.end)
            )
            self.reads.append(RunningRead(segment_id, offset, size, task))

        self.run(work)

    @rule(segment_id=segments, offset=offsets, size=sizes)
    def get(self, segment_id: int, offset: int, size: int) -> None:
        async def work() -> None:
            pieces = self.cache.get(segment_id, offset, size)
            if pieces is not None:
                data = b"".join(pieces)
                assert 0 < len(data) <= size
                assert data == content(offset, len(data))

        self.run(work)

    @precondition(lambda self: self.fetches)
    @rule(place=st.integers(0, 2), share=st.sampled_from([0.0, 0.3, 1.0, 1.0, 1.0]))
    def answer(self, place: int, share: float) -> None:
        async def work() -> None:
            pending = self.fetches[place % len(self.fetches)]
            size = int(pending.size * share)
            if size:
                pending.answer.set_result(content(pending.offset, size))
            else:
                self.failed.add((pending.segment_id, pending.offset))
                pending.answer.set_exception(StorageError("the medium failed"))

        self.run(work)

    @precondition(lambda self: self.reads)
    @rule(place=st.integers(0, 10))
    def cancel_read(self, place: int) -> None:
        async def work() -> None:
            self.reads[place % len(self.reads)].task.cancel()

        self.run(work)

    @rule(segment_id=segments, offset=offsets)
    def truncate(self, segment_id: int, offset: int) -> None:
        self.cache.truncate(segment_id, offset)
        self.discarded.add(segment_id)

    @rule(segment_id=segments)
    def drop(self, segment_id: int) -> None:
        self.cache.drop_segment(segment_id)
        assert self.cache.get(segment_id, 0, self.end) is None
        self.discarded.add(segment_id)

    @invariant()
    def all_adds_up(self) -> None:
        self.cache.check()
        statistics = self.cache.statistics()
        assert statistics.size_bytes <= statistics.budget_bytes
        assert statistics.unread_bytes <= statistics.budget_bytes // 2

    def teardown(self) -> None:
        try:
            for _ in range(1000):
                if not self.fetches:
                    break
                self.answer(0, 1.0)
            assert not self.fetches
            assert not self.reads, "a reader waits for nothing"
            self.loop.run_until_complete(self.cache.close())
        finally:
            self.loop.close()


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None, print_blob=True)
