"""What requests hold is bounded over all connections, and small ones go on while it is full."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from millrace.model.limits import APPEND_SIZE_BYTES_MAX
from millrace.server.app import Server
from millrace.server.front.counters import FrontCounters
from millrace.server.front.options import FrontOptions
from millrace.server.front.request_memory import SMALL_SIZE_BYTES, RequestAccount, RequestMemory
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.framing import encode
from millrace.wire.limits import KIB, MIB
from tests.support.protocol import Peer, append_frame, code_of
from tests.support.servers import server_options
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

BYTES_MAX = 16 * MIB
USUAL_MAX = 14 * MIB


class Requester:
    """A connection that wants memory, and may have some that it does not use."""

    def __init__(self, memory: RequestMemory, *, unused: int = 0) -> None:
        self.account: RequestAccount = memory.account(self)
        self.account.hold(unused)
        self.unused = unused
        self.wanted = 0
        self.served: list[int] = []

    def give_back(self) -> None:
        self.account.give(self.unused)
        self.unused = 0

    def want(self, size: int) -> bool:
        """Ask for memory, and wait for it."""
        self.wanted = size
        if self.account.take(size):
            self.served.append(size)
            return True
        self.account.wait()
        return False

    def request_room_found(self) -> None:
        self.want(self.wanted)


@pytest.fixture
def counters() -> FrontCounters:
    return FrontCounters()


@pytest.fixture
def memory(counters: FrontCounters) -> RequestMemory:
    return RequestMemory(bytes_max=BYTES_MAX, counters=counters)


async def test_the_sum_over_all_is_bounded_and_small_requests_go_on(memory: RequestMemory) -> None:
    """Behaviour 86."""
    large = [Requester(memory) for _ in range(20)]
    assert [each.want(MIB) for each in large] == [True] * 14 + [False] * 6
    small = [Requester(memory) for _ in range(40)]
    assert sum(each.account.take(SMALL_SIZE_BYTES) for each in small) == 2 * MIB // SMALL_SIZE_BYTES
    assert memory.held_bytes == BYTES_MAX
    for each in [*large, *small]:
        each.account.close()
    assert (memory.held_bytes, memory.is_contended) == (0, False)


async def test_a_connection_that_holds_much_has_no_small_requests(memory: RequestMemory) -> None:
    one = Requester(memory)
    assert one.want(USUAL_MAX)
    assert not one.account.take(1)
    assert Requester(memory).account.take(1)


async def test_those_who_wait_are_served_in_turn(memory: RequestMemory, counters: FrontCounters) -> None:
    first, large, other = Requester(memory), Requester(memory), Requester(memory)
    assert first.want(10 * MIB)
    assert not large.want(8 * MIB)
    assert not other.want(MIB), "there is room, but not before those who wait"
    assert counters.requests_delayed_total == 2
    first.account.give(4 * MIB)
    await until(lambda: large.served == [8 * MIB])
    assert not other.served
    large.account.give(MIB)
    await until(lambda: other.served == [MIB])
    assert memory.held_bytes == USUAL_MAX
    assert not memory.is_contended


async def test_what_is_not_in_use_is_given_back_when_somebody_waits(memory: RequestMemory) -> None:
    idle = [Requester(memory, unused=MIB) for _ in range(14)]
    late = Requester(memory)
    assert not late.want(8 * MIB)
    await until(lambda: late.served == [8 * MIB])
    assert not any(each.account.held_bytes for each in idle)


async def test_one_who_leaves_is_not_waited_for(memory: RequestMemory) -> None:
    first, gone, other = Requester(memory), Requester(memory), Requester(memory)
    assert first.want(10 * MIB)
    assert not gone.want(8 * MIB)
    assert not other.want(4 * MIB)
    gone.account.close()
    await until(lambda: other.served == [4 * MIB])
    gone.account.give(8 * MIB)  # a request that was cancelled ends later
    assert memory.held_bytes == USUAL_MAX


async def test_what_is_here_already_counts_in_any_case(memory: RequestMemory) -> None:
    one, other = Requester(memory), Requester(memory)
    one.account.hold(BYTES_MAX + KIB)
    assert not other.account.take(1)
    one.account.give(2 * KIB)
    assert other.account.take(1)


# --- over real sockets ---


async def test_frames_that_never_end_do_not_stop_small_requests(tmp_path: Path) -> None:
    """Behaviour 86: what is being received is bounded over all connections; who wants more waits, and others go on."""
    front = FrontOptions(request_bytes_max=64 * MIB)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(server_options(tmp_path, front=front)))
        honest = await stack.enter_async_context(await Peer.connect(server.address))
        segment_id = await honest.create_segment("raw/a")
        attackers = [await stack.enter_async_context(await Peer.connect(server.address)) for _ in range(10)]
        for attacker in attackers:
            frame = append_frame(segment_id, bytes(APPEND_SIZE_BYTES_MAX), request_id=1)
            attacker.push(frame[: 64 * KIB])
        await until(lambda: server.statistics()["front"].requests_delayed_total >= 7)
        assert server.statistics()["server"].request_bytes <= 56 * MIB
        await honest.store(segment_id, b"small")
        assert (await honest.info(segment_id)).length == 5
        # Those that were held up are received when the others have gone.
        late = encode(m.GetTails([m.NamedStream("tests/none")] * 1000), request_id=honest.next_id())
        await honest.send(late)
        for attacker in attackers:
            await attacker.close()
        assert isinstance((await honest.receive())[1], m.ErrorReply)
        await until(lambda: server.statistics()["server"].request_bytes < 64 * KIB)


class Holding:
    """A connection that holds memory and gives nothing back."""

    def give_back(self) -> None: ...

    def request_room_found(self) -> None: ...


async def test_readers_that_wait_count_among_the_requests(tmp_path: Path) -> None:
    """Behaviour 86."""
    async with Server(server_options(tmp_path)) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        ids = [await peer.start(m.Subscribe(segment_id, 0, 100)) for _ in range(10)]
        await peer.info(segment_id)
        held = server.statistics()["server"].request_bytes
        assert held >= 10 * KIB
        for request_id in ids:
            await peer.send(encode(m.Unsubscribe(), request_id=request_id))
        await peer.info(segment_id)
        assert server.statistics()["server"].request_bytes == held - 10 * KIB
        server._request_memory.account(Holding()).hold(FrontOptions().request_bytes_max)
        assert await code_of(peer.read(segment_id, 0, wait_ms=60_000)) is ErrorCode.THROTTLED
        assert (await peer.read(segment_id, 0)).payload == b""
