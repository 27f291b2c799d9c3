"""Bounds of event times: held by the server, for events of any client, alone, in batches and in transactions."""

import asyncio
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millrace
from millrace import HEAD, TAIL, EventTimeBounds, EventTimeError, OutsideTimes, ScalingPolicy, StreamConfig
from millrace.client.write.options import WriterOptions
from millrace.model.block_layout import BLOCK_HEADER_SIZE_BYTES
from millrace.model.block_packing import pack_block
from millrace.model.compression import Compression
from millrace.model.event_block import block_checksum
from millrace.model.limits import APPEND_SIZE_BYTES_MAX
from millrace.server.app import Server
from millrace.server.container.event_times import EventTimeClamp
from millrace.server.container.state.segment import Segment
from millrace.server.host.clock import SystemClock
from millrace.server.wal import WalOptions
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.limits import MIB
from tests.server.container.states import new_state
from tests.support.impossible_logs import run_of
from tests.support.protocol import Outcome, Peer, Stored
from tests.support.servers import BUSY, QUIET, server_options

STREAM = "shop/orders"
SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
YEAR_9999_US = 253_370_764_800_000_000
BOUNDS = EventTimeBounds(future_s_max=3600, past_s_max=7 * 86_400)
CLAMPED = EventTimeBounds(future_s_max=3600, past_s_max=7 * 86_400, outside=OutsideTimes.CLAMP)


def now_us() -> int:
    return time.time_ns() // 1000


def configuration(bounds: EventTimeBounds | None, segments: int = 1) -> StreamConfig:
    return StreamConfig(scaling=ScalingPolicy.fixed(segments), event_times=bounds)


async def write(client: millrace.Client, *timestamps_us: int) -> None:
    async with client.writer(STREAM) as writer:
        for timestamp_us in timestamps_us:
            await writer.write(b"x", timestamp_us=timestamp_us)


async def read(client: millrace.Client) -> list[millrace.Event]:
    async with client.reader(STREAM, start=HEAD, end=TAIL) as reader:
        return [event async for event in reader]


def outside_us() -> list[tuple[int, str]]:
    now = now_us()
    return [
        (YEAR_9999_US, "after the clock of the server; the stream takes events of at most 3,600 s after it"),
        (now + 2 * HOUR_US, "after the clock"),
        (
            now - 8 * 24 * HOUR_US,
            "before the clock of the server; the stream takes events of at most 604,800 s before it",
        ),
        (now // SECOND_US, "looks like seconds: the time of an event is in microseconds"),
        (now // 1000, "looks like milliseconds"),
        (now * 1000, "looks like nanoseconds"),
    ]


@pytest.mark.asyncio
async def test_events_outside_are_refused_and_named(tmp_path: Path) -> None:
    async with Server(server_options(tmp_path)) as server, millrace.connect(server.address) as client:
        await client.create_stream(STREAM, configuration(BOUNDS))
        for timestamp_us, problem in outside_us():
            with pytest.raises(EventTimeError, match=f"timestamp_us={timestamp_us}, .*{problem}"):
                await write(client, timestamp_us)
        inside = [now_us(), now_us() + HOUR_US // 2, now_us() - 24 * HOUR_US]
        await write(client, *inside)
        assert [event.timestamp_us for event in await read(client)] == inside


@pytest.mark.asyncio
@pytest.mark.parametrize("container", [BUSY, QUIET])
async def test_bounds_hold_after_a_restart_a_scaling_and_until_they_are_changed(tmp_path: Path, container: Any) -> None:
    """From the checkpoint, or from the log."""
    async with Server(server_options(tmp_path, container=container)) as server:
        async with millrace.connect(server.address) as client:
            await client.create_stream(STREAM, configuration(None))
            await write(client, YEAR_9999_US)
            await client.update_stream(STREAM, configuration(BOUNDS))
        if container is BUSY:
            await server.opened.flusher.checkpoint()
    async with Server(server_options(tmp_path, container=container)) as server:
        async with millrace.connect(server.address) as client:
            with pytest.raises(EventTimeError):
                await write(client, YEAR_9999_US)
            await client.update_stream(STREAM, configuration(BOUNDS, segments=3))
            with pytest.raises(EventTimeError):
                await write(client, YEAR_9999_US)
            await client.update_stream(STREAM, configuration(None, segments=3))
            await write(client, YEAR_9999_US)
            assert len(await read(client)) == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD, Compression.LZ4])
async def test_events_outside_are_clamped_and_nothing_else_of_them_changes(
    tmp_path: Path, compression: Compression
) -> None:
    wanted = [0, YEAR_9999_US, now_us()]
    values, keys = [b"", b"long" * 1000, b"c"], ["k", "", None]
    headers = [{"a": b"1"}, None, {"b": b""}]
    async with Server(server_options(tmp_path)) as server, millrace.connect(server.address) as client:
        await client.create_stream(STREAM, configuration(CLAMPED))
        before_us = now_us()
        async with client.writer(STREAM, options=WriterOptions(compression=compression)) as writer:
            for value, key, each, timestamp_us in zip(values, keys, headers, wanted, strict=True):
                _ = writer.write(value, key=key, headers=each, timestamp_us=timestamp_us)
            await writer.flush()
            table = pa.table(
                {"value": pa.array([b"z"], pa.binary()), "timestamp": pa.array([10**18], pa.timestamp("us", "UTC"))}
            )
            await writer.write_arrow(table)
        events = await read(client)

    assert [event.value for event in events] == [*values, b"z"]
    assert [event.key for event in events] == [*keys, None]
    assert [event.headers for event in events] == [{"a": b"1"}, {}, {"b": b""}, {}]
    low, high, same, arrow = (event.timestamp_us or 0 for event in events)
    assert same == wanted[2]
    assert before_us - 7 * 24 * HOUR_US <= low <= now_us() - 7 * 24 * HOUR_US
    assert before_us + HOUR_US <= high <= arrow <= now_us() + HOUR_US


@pytest.mark.asyncio
async def test_bounds_hold_in_transactions(tmp_path: Path) -> None:
    async with Server(server_options(tmp_path)) as server, millrace.connect(server.address) as client:
        await client.create_stream(STREAM, configuration(BOUNDS))
        with pytest.raises(EventTimeError):
            async with client.transaction(STREAM) as transaction:
                await transaction.write(b"x", timestamp_us=YEAR_9999_US)
        await client.update_stream(STREAM, configuration(CLAMPED))
        async with client.transaction(STREAM) as transaction:
            await transaction.write(b"x", timestamp_us=YEAR_9999_US)
        (event,) = await read(client)
        assert (event.timestamp_us or 0) < now_us() + 2 * HOUR_US


async def append(peer: Peer, segment_id: int, *payloads: bytes) -> list[Outcome]:
    return await peer.settled(await peer.append(segment_id, *payloads))


@pytest.mark.asyncio
async def test_no_form_of_an_append_passes_by(tmp_path: Path) -> None:
    """Several blocks, parts of blocks, and what is not a block; also in a run of several appends."""
    inside = bytes(pack_block([b"in"], timestamps_us=now_us()))
    outside = bytes(pack_block([b"out"], timestamps_us=YEAR_9999_US))
    timeless = bytes(pack_block([b"none"]))
    async with Server(server_options(tmp_path)) as server, await Peer.connect(server.address) as peer:
        stream = await peer.ask(m.CreateStream(STREAM, 1, configuration(BOUNDS).to_json()), m.StreamInfo)
        segment_id = stream.segments[0].segment_id
        for payload, code in [
            (inside + outside, ErrorCode.EVENT_TIME_OUTSIDE),
            (outside[:60], ErrorCode.INVALID_ARGUMENT),
            (inside + outside[:16], ErrorCode.INVALID_ARGUMENT),
            (b"x" * 64, ErrorCode.INVALID_ARGUMENT),
        ]:
            async with await Peer.connect(server.address) as other:
                (outcome,) = await append(other, segment_id, payload)
                assert outcome == code
        stored = await append(peer, segment_id, inside, timeless, inside + timeless)
        assert all(isinstance(outcome, Stored) for outcome in stored)
        clamped = configuration(CLAMPED).to_json()
        await peer.ask(m.UpdateStream(STREAM, clamped), m.StreamInfo)
        stored = await append(peer, segment_id, inside, outside, timeless, inside + outside)
        assert all(isinstance(outcome, Stored) for outcome in stored)
        async with millrace.connect(server.address) as client:
            values = [event.value for event in await read(client)]
        assert values == [b"in", b"none", b"in", b"none", b"in", b"out", b"none", b"in", b"out"]


def grown() -> bytes:
    """Return an append of the largest size, which is larger with other times: a time of zero bytes compresses well."""
    outside = 100 * bytes(pack_block([b""] * 5, timestamps_us=0, compression=Compression.ZSTD))
    rest = APPEND_SIZE_BYTES_MAX - len(outside)
    sizes = [rest // 2, rest - rest // 2]
    overhead = len(pack_block([b""], timestamps_us=now_us()))
    inside = [bytes(pack_block([bytes(size // 8 * 8 - overhead)], timestamps_us=now_us())) for size in sizes]
    return b"".join([outside, *inside])


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "payload_of",
    [
        lambda: 3 * bytes(pack_block([bytes(6 * MIB)], timestamps_us=YEAR_9999_US, compression=Compression.LZ4)),
        lambda: 1001 * bytes(pack_block([b""], timestamps_us=YEAR_9999_US)),
        grown,
    ],
    ids=["large when unpacked", "many", "larger than an append when packed again"],
)
async def test_what_cannot_be_clamped_is_refused(tmp_path: Path, payload_of: Callable[[], bytes]) -> None:
    """A few bytes on the wire do not cost minutes, and the connection goes on."""
    payload = payload_of()
    assert len(payload) <= APPEND_SIZE_BYTES_MAX
    async with Server(server_options(tmp_path, wal=WalOptions())) as server, await Peer.connect(server.address) as peer:
        stream = await peer.ask(m.CreateStream(STREAM, 1, configuration(CLAMPED).to_json()), m.StreamInfo)
        segment_id = stream.segments[0].segment_id
        assert await append(peer, segment_id, payload) == [ErrorCode.INVALID_ARGUMENT]
        await peer.ask(m.Ping(), m.Pong)
        (stored,) = await append(peer, segment_id, bytes(pack_block([b"x"], timestamps_us=YEAR_9999_US)))
        assert isinstance(stored, Stored)


@pytest.mark.asyncio
async def test_the_event_loop_goes_on_while_many_appends_are_clamped() -> None:
    """A run of small appends took it up to a tenth of a second."""
    state = new_state()
    state.segments.add(Segment(segment_id=1, name="shop/orders#1", created_us=0, stream_id=2))
    state.event_times[2] = CLAMPED
    one = run_of(1, 0, bytes(pack_block([b"x"], timestamps_us=YEAR_9999_US)))
    run = replace(one, frames=bytes(one.frames) * 250, frame_count=250, event_count=250)
    clamp = EventTimeClamp(state, SystemClock())

    clamping = asyncio.ensure_future(clamp.clamped(run))
    turns = 0
    while not clamping.done():
        await asyncio.sleep(0)
        turns += 1

    assert turns > 3, "it waited for three steps of a thread"
    clamped = await clamping
    assert not clamp.is_due(clamped)
    assert (clamped.frame_count, len(clamped.frames)) == (250, len(run.frames))
    assert await clamp.clamped(clamped) is clamped


@pytest.mark.asyncio
async def test_times_outside_of_the_header_of_their_block_are_not_read(tmp_path: Path) -> None:
    """The server compares the header with the bounds: one that lies moves no watermark beyond them."""
    now = now_us()
    block = bytearray(pack_block([b"x", b"y"], timestamps_us=[YEAR_9999_US, now]))
    struct.pack_into("<qq", block, 24, now, now)
    struct.pack_into("<I", block, BLOCK_HEADER_SIZE_BYTES - 4, block_checksum(memoryview(block)))
    upside_down = bytearray(pack_block([b"z"], timestamps_us=[0]))
    struct.pack_into("<qq", upside_down, 24, YEAR_9999_US, 0)
    async with Server(server_options(tmp_path)) as server, await Peer.connect(server.address) as peer:
        stream = await peer.ask(m.CreateStream(STREAM, 1, configuration(BOUNDS).to_json()), m.StreamInfo)
        (stored,) = await append(peer, stream.segments[0].segment_id, bytes(block))
        assert isinstance(stored, Stored)
        assert await append(peer, stream.segments[0].segment_id, bytes(upside_down)) == [ErrorCode.EVENT_TIME_OUTSIDE]
        async with millrace.connect(server.address) as client:
            assert [(event.value, event.timestamp_us) for event in await read(client)] == [(b"x", now), (b"y", now)]
