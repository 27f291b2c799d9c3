from pathlib import Path

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.errors import StreamNotFoundError, StreamSealedError
from millrace.client.testing import TestServer
from millrace.client.transport.channel import ChannelState
from millrace.model.errors import InvalidArgumentError
from millrace.model.key_range import KEY_SPACE, KeyRange
from millrace.model.policy import RetentionPolicy, ScalingPolicy, StreamConfig
from millrace.server.app import Server
from tests.client.scaling import THIRDS, scale
from tests.support.servers import server_options
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio


async def test_scaling_is_one_epoch_and_repeating_it_is_none(client: Client, name: str) -> None:
    """Behaviour 23."""
    await client.create_stream(name)
    before = await client.stream_info(name)
    (first,) = before.segments
    info = await client.scale_stream(name, seal=[first.segment_id], ranges=THIRDS)
    again = await client.scale_stream(name, seal=[first.segment_id], ranges=THIRDS)

    assert (before.epoch, info.epoch, again.epoch) == (0, 1, 1)
    assert info.segments == again.segments
    assert [segment.key_range for segment in info.open_segments] == [
        KeyRange(int(low * KEY_SPACE), int(high * KEY_SPACE)) for low, high in THIRDS
    ]
    whole = await client.stream_info(name)
    assert [segment.segment_id for segment in whole.segments if segment.sealed_epoch == 1] == [first.segment_id]
    merged = await client.scale_stream(
        name,
        seal=[segment.segment_id for segment in info.open_segments[:2]],
        ranges=[(0.0, info.open_segments[1].high)],
    )
    assert len(merged.open_segments) == 2


async def test_floats_meet_borders_that_are_no_floats(client: Client, name: str) -> None:
    await client.create_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(3)))
    left, middle, _ = (await client.stream_info(name)).open_segments
    assert middle.key_range.low == KEY_SPACE // 3 != int(middle.low * KEY_SPACE)
    info = await client.scale_stream(name, seal=[middle.segment_id], ranges=[(1 / 3, 0.5), (0.5, 2 / 3)])
    assert info.open_segments[1].key_range == KeyRange(KEY_SPACE // 3, KEY_SPACE // 2)
    info = await client.scale_stream(
        name,
        seal=[left.segment_id, info.open_segments[1].segment_id],
        ranges=[(0, KEY_SPACE // 5), (KEY_SPACE // 5, KEY_SPACE // 2)],
    )
    assert info.open_segments[1].key_range == KeyRange(KEY_SPACE // 5, KEY_SPACE // 2)


async def test_ranges_that_do_not_cover_what_is_sealed_are_refused(client: Client, name: str) -> None:
    """Behaviour 23."""
    await client.create_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(2)))
    left, right = (segment.segment_id for segment in (await client.stream_info(name)).open_segments)
    for sealed, ranges in [
        ([left], [(0.0, 0.25)]),
        ([left], [(0.0, 0.25), (0.5, 0.75)]),
        ([left], [(0.0, 1.0)]),
        ([left], [(0.0, 0.3), (0.2, 0.5)]),
        ([left], []),
        ([], []),
        ([left, left], [(0.0, 0.5)]),
        ([left, right + 10**6], [(0.0, 0.5)]),
        ([left], [(0.25, 0.0)]),
    ]:
        with pytest.raises(InvalidArgumentError):
            await client.scale_stream(name, seal=sealed, ranges=ranges)
    assert (await client.stream_info(name)).epoch == 0
    with pytest.raises(StreamNotFoundError):
        await client.scale_stream("tests/none", seal=[1], ranges=[(0, 1)])
    await client.seal_stream(name)
    with pytest.raises(StreamSealedError):
        await client.scale_stream(name, seal=[left], ranges=[(0.0, 0.25), (0.25, 0.5)])


async def test_the_history_names_what_was_split_and_merged(client: Client, name: str) -> None:
    await client.create_stream(name)
    for _ in range(2):
        await scale(client, name)
    created, split, merged = await client.stream_history(name)

    assert [epoch.number for epoch in (created, split, merged)] == [0, 1, 2]
    assert created.sealed_ids == ()
    assert split.sealed_ids == tuple(segment_id for segment_id, _ in created.created)
    assert sorted(merged.sealed_ids) == sorted(segment_id for segment_id, _ in split.created)
    assert created.started_us <= split.started_us <= merged.started_us
    assert split.cause
    assert [part for _, part in merged.created] == [KeyRange(0, KEY_SPACE)]


async def test_a_configuration_is_replaced(client: Client, name: str) -> None:
    await client.create_stream(name)
    configuration = StreamConfig(
        scaling=ScalingPolicy.fixed(1), retention=RetentionPolicy.by_size(max_bytes=1 << 40), tags=("a", "b")
    )
    assert (await client.update_stream(name, configuration)).configuration == configuration
    assert (await client.stream_info(name)).configuration == configuration
    with pytest.raises(StreamNotFoundError):
        await client.update_stream("tests/none", configuration)


@pytest.mark.slow
async def test_epochs_outlive_a_killed_server(millrace_server: TestServer, name: str) -> None:
    async with millrace.connect(millrace_server.address) as client:
        await client.create_stream(name)
        for _ in range(3):
            await scale(client, name)
        before, history = await client.stream_info(name), await client.stream_history(name)
        millrace_server.kill()
        millrace_server.start()
        assert await client.stream_info(name) == before
        assert await client.stream_history(name) == history


@pytest.mark.slow
async def test_all_connections_of_a_client_have_one_session(tmp_path: Path) -> None:
    """Also those that come after others were lost; another client has another session."""
    seen: list[set[bytes]] = []
    async with Server(server_options(tmp_path)) as server:

        def sessions() -> list[bytes]:
            return [each._dispatcher._handlers.origin.session_id for each in server.connections]

        for _ in range(2):
            async with millrace.connect(server.address) as client:
                for _ in range(2):
                    await client._writes.connection()
                    await client._reads.connection()
                    assert len(sessions()) == 2
                    seen.append(set(sessions()))
                    for connection in list(server.connections):
                        connection.abort()
                    await until(
                        lambda: not sessions() and {client._writes.state, client._reads.state} == {ChannelState.IDLE}
                    )
    (one,), (again,), (other,), _ = seen
    assert len(one) == len(other) == 16
    assert one == again != other
