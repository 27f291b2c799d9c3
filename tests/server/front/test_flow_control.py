"""Why a connection is not read: its owner hears of the first reason, and when the last one goes."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.server.app import Server
from millrace.server.container.options import ContainerOptions
from millrace.server.front.flow_control import FlowControl, Reason
from millrace.server.front.options import FrontOptions
from millrace.wire import messages as m
from millrace.wire.framing import encode
from millrace.wire.limits import KIB, MIB
from tests.support.protocol import Peer, Stored, read_request
from tests.support.servers import SMALL_WAL, server_options
from tests.support.storage import FaultyStorage
from tests.support.waiting import PATIENCE_S, until


@given(st.lists(st.tuples(st.sampled_from(Reason), st.booleans()), max_size=30))
def test_the_owner_is_called_exactly_when_it_may_read_or_may_not(steps: list[tuple[Reason, bool]]) -> None:
    heard: list[bool] = []
    flow = FlowControl(lambda: heard.append(flow.is_blocked))
    holding: set[Reason] = set()
    expected: list[bool] = []
    for reason, holds in steps:
        before = bool(holding)
        holding = holding | {reason} if holds else holding - {reason}
        flow.set(reason, holds)
        assert flow.is_blocked is bool(holding)
        if bool(holding) is not before:
            expected.append(bool(holding))
    assert heard == expected


def test_an_owner_may_give_another_reason_while_it_is_called() -> None:
    """Behaviour 51: reading on may fill the next bound at once."""

    def changed() -> None:
        if not flow.is_blocked:
            flow.set(Reason.TASKS, True)

    flow = FlowControl(changed)
    flow.set(Reason.LOADING, True)
    flow.set(Reason.LOADING, False)

    assert flow.is_blocked


# --- over real sockets ---

SMALL_TAIL = ContainerOptions(
    flush_age_s=3600.0,
    flush_size_bytes=16 * KIB,
    chunk_size_bytes_max=64 * KIB,
    tail_size_bytes_high=64 * KIB,
    tail_size_bytes_low=16 * KIB,
)
"""What throttles soon when tier 2 takes nothing."""


@pytest.mark.slow
@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_a_peer_that_takes_no_replies_is_not_read_any_more(tmp_path: Path) -> None:
    """Behaviour 51: what it costs is bounded, whatever it asks for; others continue."""
    front = FrontOptions(write_buffer_bytes_high=64 * KIB)
    async with Server(server_options(tmp_path, front=front)) as server, await Peer.connect(server.address) as good:
        segment_id = await good.create_segment("raw/a")
        await good.store(segment_id, *[bytes(32 * KIB)] * 8)
        async with await Peer.connect(server.address, read_ahead=1 << 10) as deaf:
            request = read_request(segment_id, 0, size_max=256 * KIB)
            for _ in range(2000):
                deaf.push(encode(request, request_id=deaf.next_id()))
            # All is asked for that would make 500 MB of replies; the server has sent what sockets hold.
            for _ in range(50):
                await good.read(segment_id, 0)
            counters = server.statistics()["front"]
            assert counters.sent_data_bytes_total < 64 * MIB
            # It was never forgotten: once it listens, everything arrives.
            for _ in range(2000):
                _, reply = await deaf.receive()
                assert isinstance(reply, m.Data)
                assert len(reply.payload) > 0


@pytest.mark.slow
@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_a_peer_that_never_takes_its_acks_stores_what_it_sent(tmp_path: Path) -> None:
    """Behaviour 51: appends without number, acks never read; others are served meanwhile."""
    async with Server(server_options(tmp_path)) as server, await Peer.connect(server.address) as good:
        segment_id = await good.create_segment("raw/a")
        async with await Peer.connect(server.address) as deaf:
            ids = await deaf.append(segment_id, *[b"x"] * 5000)
            async with asyncio.timeout(PATIENCE_S):
                while (await good.info(segment_id)).length < 5000:
                    pass
            await deaf.settled(ids)


@pytest.mark.slow
@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_a_throttled_peer_is_told_once_why_and_when(tmp_path: Path) -> None:
    """Behaviour 51: a throttle notice says what is full and when to retry; everything is stored in the end."""
    container = ContainerOptions(
        flush_age_s=3600.0,
        flush_size_bytes=64 * KIB,
        chunk_size_bytes_max=64 * KIB,
        tail_size_bytes_high=256 * KIB,
        tail_size_bytes_low=128 * KIB,
    )
    storage = FaultyStorage()
    storage.open.clear()
    options = server_options(tmp_path, container=container, wal=replace(SMALL_WAL, files_max=64))
    async with (
        Server(options, storage=storage) as server,
        await Peer.connect(server.address) as peer,
        await Peer.connect(server.address) as reader,
    ):
        segment_id = await peer.create_segment("raw/a")
        payloads = [bytes([number]) * (16 * KIB) for number in range(32)]  # less than what is refused at once
        ids = await peer.append(segment_id, *payloads[:15])
        await peer.settled(ids)
        # One more tips it. What follows is not read before tier 2 takes something.
        ids = await peer.append(segment_id, payloads[15])
        await peer.settled(ids)
        ids = await peer.append(segment_id, *payloads[16:])
        while not peer.throttles:
            peer.note(*await peer.receive())
        length = (await reader.info(segment_id)).length
        assert length < 32 * 16 * KIB
        storage.open.set()
        outcomes = await peer.settled(ids)
        assert all(isinstance(outcome, Stored) for outcome in outcomes), outcomes
        assert "wait for" in peer.throttles[0].reason
        assert peer.throttles[0].retry_after_ms > 0
        assert await reader.read_all(segment_id) == b"".join(payloads)


@pytest.mark.slow
@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_a_peer_that_is_not_listened_to_is_not_taken_for_dead(tmp_path: Path) -> None:
    """Behaviour 45: while tier 2 stalls, clients wait and live, for many times the keepalive."""
    storage = FaultyStorage()
    storage.open.clear()
    front = FrontOptions(keepalive_s=0.1, handshake_timeout_s=0.1)
    options = server_options(tmp_path, container=SMALL_TAIL, front=front)
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        payloads = [bytes([number]) * (8 * KIB) for number in range(20)]
        await peer.settled(await peer.append(segment_id, *payloads[:10]))
        ids = await peer.append(segment_id, *payloads[10:])
        while not peer.throttles:
            peer.note(*await peer.receive())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(peer.ended(), 1.0)
        storage.open.set()
        await peer.settled(ids)
        assert await peer.read_all(segment_id) == b"".join(payloads)


@pytest.mark.asyncio
async def test_many_requests_at_once_are_all_answered(tmp_path: Path) -> None:
    """Beyond the bound of tasks the socket is left unread; nothing is dropped."""
    front = FrontOptions(tasks_count_max=4)
    async with Server(server_options(tmp_path, front=front)) as server, await Peer.connect(server.address) as peer:
        ids = [await peer.start(m.CreateSegment(f"raw/s{number}")) for number in range(300)]
        replies = [(await peer.receive())[0].request_id for _ in ids]
        assert sorted(replies) == ids


@pytest.mark.asyncio
async def test_a_server_that_does_not_listen_says_that_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behaviour 45: a client that is more attentive than the server has to hear from it in time."""
    for module in ("millrace.wire.session", "millrace.server.front.connection"):
        monkeypatch.setattr(f"{module}.UNREAD_PING_S", 0.05)
    storage = FaultyStorage()
    storage.open.clear()
    options = server_options(tmp_path, container=SMALL_TAIL)
    async with Server(options, storage=storage) as server, await Peer.connect(server.address) as peer:
        segment_id = await peer.create_segment("raw/a")
        await peer.store(segment_id, *[bytes(8 * KIB)] * 10)
        receiving = asyncio.create_task(peer.settled(await peer.append(segment_id, *[bytes(8 * KIB)] * 10)))
        await until(lambda: len(peer.pings) >= 3)
        assert peer.throttles
        storage.open.set()
        await receiving
