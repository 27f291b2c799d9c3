"""A stream that scales and forgets by itself, killed while it does: nothing is lost, doubled or half done."""

import asyncio
import contextlib
from pathlib import Path

import pytest

import millrace
from millrace.client.testing import SETTINGS_SMALL, TestServer
from millrace.model.policy import RetentionPolicy, ScalingPolicy, StreamConfig
from tests.crash.patience import PATIENT
from tests.support.servers import ENVIRONMENT_OF_BUSY
from tests.support.waiting import PATIENCE_S

HASTY = {
    "MILLRACE_STREAMS_TICK_S": "0.02",
    "MILLRACE_STREAMS_RETENTION_INTERVAL_S": "0.02",
    "MILLRACE_STREAMS_FAST_WINDOW_S": "0.1",
    "MILLRACE_STREAMS_SLOW_WINDOW_S": "0.2",
    "MILLRACE_STREAMS_SPLIT_AFTER_S": "0.1",
    "MILLRACE_STREAMS_MERGE_AFTER_S": "0.1",
}
KEYS = [f"key-{number}" for number in range(16)]
KILLS = 3


async def write(client: millrace.Client, stream: str, *, until: asyncio.Event) -> dict[str, int]:
    """Write numbered events of all keys, in bursts with pauses between; return how many of each key."""
    sent = 0
    async with client.writer(stream) as writer:
        while not until.is_set():
            # A burst lasts longer than what splits a segment, on however quick a machine.
            for _ in range(30):
                for key in KEYS:
                    _ = writer.write(b"%d" % sent, key=key)
                sent += 1
                await writer.flush()
                await pause(until, 0.01)
            await pause(until, 0.4)
    return dict.fromkeys(KEYS, sent)


async def pause(until: asyncio.Event, duration_s: float) -> None:
    """Wait so long, or until all is done."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(until.wait(), duration_s)


async def kill(server: TestServer, client: millrace.Client, stream: str, *, done: asyncio.Event) -> None:
    """Kill the server some epochs after each other, and start it again."""
    for _ in range(KILLS):
        epoch = (await client.stream_info(stream)).epoch
        while (await client.stream_info(stream)).epoch < epoch + 2:
            pass  # each question is a round trip
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    done.set()


async def read(client: millrace.Client, stream: str) -> dict[str, list[int]]:
    """Return the numbers of each key that are left; from the beginning again where retention overtakes the reader."""
    while True:
        try:
            return await read_once(client, stream)
        except millrace.CutTruncatedError:
            pass


async def read_once(client: millrace.Client, stream: str) -> dict[str, list[int]]:
    """Return the numbers of each key that are left."""
    seen: dict[str, list[int]] = {key: [] for key in KEYS}
    async with client.reader(stream, end=millrace.TAIL) as reader:
        async for event in reader:
            assert event.key is not None
            seen[event.key].append(int(event.value))
    return seen


async def live(server: TestServer, configuration: StreamConfig) -> tuple[dict[str, int], dict[str, list[int]]]:
    """Return what was written, and what is there to be read."""
    done = asyncio.Event()
    async with millrace.connect(server.address, options=PATIENT) as client, asyncio.timeout(PATIENCE_S):
        await client.create_stream("a/b", configuration)
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(write(client, "a/b", until=done))
            group.create_task(kill(server, client, "a/b", done=done))
        history = await client.stream_history("a/b")
        assert [epoch.number for epoch in history] == list(range(len(history)))
        assert len(history) > 2 * KILLS
        return writing.result(), await read(client, "a/b")


@pytest.mark.slow
@pytest.mark.parametrize("settings", [SETTINGS_SMALL, ENVIRONMENT_OF_BUSY], ids=["quiet", "busy"])
def test_scaling_by_itself_survives_kills(tmp_path: Path, settings: dict[str, str]) -> None:
    """Behaviours 22, 24, 39: every key's sequence is +1 whenever the server is killed while it splits and merges."""
    server = TestServer(tmp_path, settings={**settings, **HASTY})
    server.start()
    try:
        configuration = StreamConfig(scaling=ScalingPolicy.by_events_per_s(100))
        written, seen = asyncio.run(live(server, configuration))
    finally:
        server.stop()
    assert seen == {key: list(range(count)) for key, count in written.items()}


@pytest.mark.slow
def test_forgetting_by_itself_survives_kills(tmp_path: Path) -> None:
    """Behaviours 25, 39: what is left of each key continues to the last event without a gap."""
    server = TestServer(tmp_path, settings={**ENVIRONMENT_OF_BUSY, **HASTY})
    server.start()
    try:
        configuration = StreamConfig(
            scaling=ScalingPolicy.by_events_per_s(100), retention=RetentionPolicy.by_size(max_bytes=10_000)
        )
        written, seen = asyncio.run(live(server, configuration))
    finally:
        server.stop()
    for key, numbers in seen.items():
        assert numbers == list(range(written[key] - len(numbers), written[key]))
    assert any(numbers and numbers[0] > 0 for numbers in seen.values())
