"""What readers hold is bounded over all connections, and those who take nothing stop nobody forever."""

import asyncio

import pytest

from millrace.server.front.counters import FrontCounters
from millrace.server.front.reader_memory import GRANT_SIZE_BYTES_SMALL, ReaderAccount, ReaderMemory
from millrace.wire.limits import KIB, MIB
from tests.support.clock import ManualClock
from tests.support.waiting import until

BYTES_MAX = 16 * MIB
USUAL_MAX = 14 * MIB
SMALL = GRANT_SIZE_BYTES_SMALL


class Reader:
    """A connection that takes what it is told to take."""

    def __init__(self, memory: ReaderMemory) -> None:
        self.unsent = 0
        self.is_ended = False
        self.account: ReaderAccount = memory.account(self)

    def unsent_bytes(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.is_ended = True

    def send(self, size: int, clock: ManualClock) -> None:
        self.unsent += size
        self.account.sent(size, clock.monotonic_s())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def memory(clock: ManualClock) -> ReaderMemory:
    return ReaderMemory(bytes_max=BYTES_MAX, patience_s=5.0, clock=clock, counters=FrontCounters())


def fill(memory: ReaderMemory, clock: ManualClock) -> list[Reader]:
    """As many readers that take nothing as there is room for."""
    readers: list[Reader] = []
    while True:
        reader = Reader(memory)
        size = reader.account.grant(MIB)
        if not size:
            return readers
        reader.send(size, clock)
        readers.append(reader)


@pytest.mark.asyncio
async def test_the_sum_over_all_is_bounded(memory: ReaderMemory, clock: ManualClock) -> None:
    """Behaviour 86."""
    readers = fill(memory, clock)
    assert BYTES_MAX - SMALL < memory.held_bytes <= BYTES_MAX
    assert len(readers) == 14 + 2 * MIB // SMALL
    assert not any(reader.account.grant(1) for reader in readers)
    for reader in readers:
        reader.account.close()
    assert memory.held_bytes == 0


@pytest.mark.asyncio
async def test_fetches_count_until_they_end(memory: ReaderMemory) -> None:
    reader, other = Reader(memory), Reader(memory)
    assert reader.account.grant(20 * MIB) == USUAL_MAX
    reader.account.fetch(USUAL_MAX)
    assert other.account.grant(8 * MIB) == SMALL
    reader.account.fetched(USUAL_MAX)
    assert other.account.grant(8 * MIB) == 8 * MIB
    reader.account.fetch(MIB)
    reader.account.close()
    reader.account.fetched(MIB)
    assert memory.held_bytes == 0


@pytest.mark.asyncio
async def test_those_who_take_what_they_get_go_on_while_others_fill_the_rest(
    memory: ReaderMemory, clock: ManualClock
) -> None:
    """Behaviour 18: a reader that stops reading does not slow those at the tail."""
    deaf = Reader(memory)
    deaf.send(USUAL_MAX, clock)
    tail = Reader(memory)
    for _ in range(100):
        assert tail.account.grant(MIB) == SMALL
        tail.send(SMALL, clock)
        await clock.advance(1.0)
        tail.unsent = 0
        tail.account.measure(clock.monotonic_s())
    assert not deaf.account.grant(MIB)


@pytest.mark.asyncio
async def test_who_takes_nothing_is_ended_when_others_wait(memory: ReaderMemory, clock: ManualClock) -> None:
    """Behaviour 86: an honest reader waits no longer than the patience."""
    deaf = fill(memory, clock)
    slow = deaf[-1]
    for _ in range(4):
        await clock.advance(1.4)
        slow.unsent = 0
        slow.account.measure(clock.monotonic_s())
        slow.send(SMALL, clock)
    honest = Reader(memory)
    found = asyncio.Event()
    assert not honest.account.grant(MIB)
    memory.wait(found.set)
    await found.wait()
    assert honest.account.grant(MIB) == MIB
    assert not slow.is_ended
    assert sum(reader.is_ended for reader in deaf) >= 6
    assert memory.held_bytes <= USUAL_MAX


@pytest.mark.asyncio
async def test_nobody_is_ended_while_there_is_room(memory: ReaderMemory, clock: ManualClock) -> None:
    reader = Reader(memory)
    reader.send(8 * MIB, clock)
    await clock.advance(1000.0)
    found = asyncio.Event()
    memory.wait(found.set)
    await found.wait()
    assert not reader.is_ended


@pytest.mark.asyncio
async def test_replies_that_pass_the_bound_end_who_holds_most(memory: ReaderMemory, clock: ManualClock) -> None:
    """Behaviour 86: replies to other requests than reads ask for no grant."""
    small, large = Reader(memory), Reader(memory)
    small.send(6 * MIB, clock)
    large.send(11 * MIB, clock)
    await until(lambda: large.is_ended)
    assert not small.is_ended
    assert memory.held_bytes == 6 * MIB


@pytest.mark.asyncio
async def test_room_goes_to_who_waited_longest(memory: ReaderMemory, clock: ManualClock) -> None:
    blocking = Reader(memory)
    blocking.send(BYTES_MAX, clock)
    served: list[int] = []
    done = asyncio.Event()
    waiting = [Reader(memory) for _ in range(20)]

    def try_again(number: int) -> None:
        size = waiting[number].account.grant(MIB)
        if size < MIB:
            memory.wait(callbacks[number])
        else:
            waiting[number].send(size, clock)
            served.append(number)
            if number == 13:
                done.set()

    callbacks = [lambda number=number: try_again(number) for number in range(20)]
    for callback in callbacks:
        memory.wait(callback)
    blocking.unsent = 0
    blocking.account.measure(clock.monotonic_s())
    await done.wait()
    assert served == list(range(14))
    assert memory.held_bytes <= BYTES_MAX
    memory.stop_waiting(callbacks[19])
    assert KIB < SMALL
