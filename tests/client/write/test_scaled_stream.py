"""Writers of a stream that is scaled meanwhile, against a real server."""

# Nobody needs to look at the future of a write: flush and leaving the writer raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
from collections import defaultdict

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.errors import (
    StreamNotFoundError,
    StreamSealedError,
)
from millrace.client.testing import TestServer
from millrace.client.write.options import WriterOptions
from tests.client.scaling import scale
from tests.client.write.writers import values_of

pytestmark = pytest.mark.asyncio


async def numbers_of(client: Client, stream: str) -> dict[str | None, list[int]]:
    """The numbers of the events of each key, as a reader is given them."""
    seen = defaultdict(list)
    async with client.reader(stream, end=millrace.TAIL) as reader:
        async for event in reader:
            seen[event.key].append(int(event.value))
    return seen


@pytest.mark.both_loops
async def test_what_a_replaced_segment_did_not_store_goes_to_its_successors(client: Client, name: str) -> None:
    """Behaviour 22: everything once, each key in order, and every future is told where its event is."""
    await client.create_stream(name)
    options = WriterOptions(block_size_bytes=1024, in_flight_bytes_max=20_000)
    async with client.writer(name, writer_id=f"{name}:w", options=options) as writer:
        futures = []
        for number in range(2000):
            futures.append(writer.write(b"%d" % number, key=f"k{number % 7}"))
            if number % 250 == 0:
                futures.append(writer.write_many([b"%d" % number] * 3, key="block"))
                await asyncio.sleep(0)
                await scale(client, name)
        await writer.flush()
        assert writer.statistics().reroutes > 0
        assert writer.pending_bytes == 0
        stored = await asyncio.gather(*futures)
        assert await client.writer_state(name, f"{name}:w") == {
            **dict.fromkeys([segment.segment_id for segment in (await client.stream_info(name)).segments], 0),
            **writer.last_event_numbers,
        }
        assert sum(writer.last_event_numbers.values()) == 2000 + 8 * 3
    seen = await numbers_of(client, name)
    blocks = [number for number in range(0, 2000, 250) for _ in range(3)]
    assert seen == {"block": blocks} | {f"k{key}": list(range(key, 2000, 7)) for key in range(7)}
    assert len({record.segment_id for record in stored}) > 1


async def test_an_idle_writer_learns_of_a_scale_when_it_writes(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name) as writer:
        first = await writer.write(b"0", key="k")
        for _ in range(3):
            opened = await scale(client, name)
        second = await writer.write(b"1", key="k")
        assert first.segment_id not in opened
        assert second.segment_id in opened
        assert (second.offset, second.event_number) == (0, 1)
    assert await numbers_of(client, name) == {"k": [0, 1]}


async def test_a_block_stays_one_as_long_as_its_keys_stay_together(client: Client, name: str) -> None:
    """Behaviour 7, across a scale: a block of one key is stored whole, one of many keys whole per segment."""
    await client.create_stream(name)
    keys = [f"k{number}" for number in range(30)]
    async with client.writer(name) as writer:
        await scale(client, name)
        one = writer.write_many([b"%d" % number for number in range(30)], key="one")
        none = writer.write_many([b"%d" % number for number in range(30)])
        many = writer.write_many([b"%d" % number for number in range(30)], keys=keys)
        await writer.flush()
    assert (await one).event_count == (await none).event_count == 30
    assert (await many).event_count < 30
    async with client.reader(name, end=millrace.TAIL) as reader:
        events = [event async for event in reader]
    for key in ("one", None):
        block = [event for event in events if event.key == key]
        assert [int(event.value) for event in block] == list(range(30))
        assert [event.index for event in block] == list(range(30))
        assert len({(event.segment, event.offset) for event in block}) == 1
    split = [event for event in events if event.key in keys]
    assert sorted(int(event.value) for event in split) == list(range(30))
    assert len({(event.segment, event.offset) for event in split}) == 3
    for place in {(event.segment, event.offset) for event in split}:
        inside = [int(event.value) for event in split if (event.segment, event.offset) == place]
        assert inside == sorted(inside)


async def test_flush_waits_for_what_was_rerouted(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name) as writer:
        for _ in range(5):
            await scale(client, name)
            futures = [writer.write(b"0", key=f"k{number}") for number in range(50)]
            await writer.flush()
            assert all(future.done() and future.exception() is None for future in futures)


async def test_a_stream_that_is_scaled_and_then_sealed_fails_writes_as_sealed(client: Client, name: str) -> None:
    """Behaviour 21."""
    await client.create_stream(name)
    async with client.writer(name) as writer:
        await writer.write(b"stored")
        await scale(client, name)
        await client.seal_stream(name)
        futures = [writer.write(b"late", key=f"k{number}") for number in range(5)]
        with pytest.raises(StreamSealedError):
            await writer.flush()
        assert all(isinstance(future.exception(), StreamSealedError) for future in futures)
        with pytest.raises(StreamSealedError):
            writer.write(b"refused at once")
    assert await values_of(client, name) == [b"stored"]


async def test_a_deleted_stream_ends_its_writers(client: Client, name: str) -> None:
    await client.create_stream(name)
    writer = await client.writer(name).__aenter__()
    await client.seal_stream(name)
    await client.delete_stream(name)
    future = writer.write(b"x")
    with pytest.raises(StreamNotFoundError):
        await writer.flush()
    assert isinstance(future.exception(), StreamNotFoundError)


async def test_a_writer_does_not_continue_in_another_stream_of_that_name(client: Client, name: str) -> None:
    """Behaviour 19."""
    await client.create_stream(name)
    writer = await client.writer(name).__aenter__()
    await writer.write(b"old")
    await client.seal_stream(name)
    await client.delete_stream(name)
    await client.create_stream(name)
    writer.write(b"lost")
    with pytest.raises(StreamNotFoundError, match="another stream"):
        await writer.flush()
    assert await values_of(client, name) == []


async def test_a_segment_that_is_deleted_by_now_is_replaced_too(client: Client, name: str) -> None:
    """A writer that was idle while its segment was replaced and truncated away continues in what is left."""
    await client.create_stream(name)
    async with client.writer(name) as writer:
        await writer.write(b"0", key="k")
        await scale(client, name)
        async with client.writer(name) as other:  # only a truncation after the beginnings releases what was replaced
            await other.write(b"9", key="z")
        await client.truncate_stream(name, millrace.TAIL)
        assert len((await client.stream_info(name)).segments) == 3
        await writer.write(b"1", key="k")
    assert await numbers_of(client, name) == {"k": [1]}


async def test_a_writer_that_is_opened_counts_what_is_in_segments_that_were_replaced(client: Client, name: str) -> None:
    """Behaviour 1, across scales: the numbers of all segments together count the events of the writer."""
    await client.create_stream(name)
    for round_number in range(4):
        async with client.writer(name, writer_id=f"{name}:w") as writer:
            assert sum(writer.last_event_numbers.values()) == round_number * 2
            await writer.write(b"%d" % (2 * round_number), key="k")
            await scale(client, name)
            await writer.write(b"%d" % (2 * round_number + 1), key="k")
    state = await client.writer_state(name, f"{name}:w")
    assert state is not None
    assert sum(state.values()) == 8
    assert await numbers_of(client, name) == {"k": list(range(8))}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["named", "unnamed"])
async def test_a_kill_around_a_scale_costs_no_event_and_doubles_none(
    millrace_server: TestServer, name: str, kind: str
) -> None:
    """Behaviours 2, 3 and 22."""
    options = WriterOptions(block_size_bytes=2048, in_flight_bytes_max=50_000)
    writer_id = f"{name}:w" if kind == "named" else None
    async with millrace.connect(millrace_server.address) as client:
        await client.create_stream(name)
        async with client.writer(name, writer_id=writer_id, options=options) as writer:
            for number in range(6000):
                writer.write(b"%d" % number, key=f"k{number % 7}")
                if number % 1000 == 500:
                    await asyncio.sleep(0)
                    scaling = asyncio.create_task(scale(client, name))
                    for _ in range(number // 1000):  # a little later each time
                        await asyncio.sleep(0.002)
                    await asyncio.to_thread(millrace_server.kill)
                    await asyncio.to_thread(millrace_server.start)
                    await scaling
            await writer.flush()
            assert sum(writer.last_event_numbers.values()) == 6000
        assert await numbers_of(client, name) == {f"k{key}": list(range(key, 6000, 7)) for key in range(7)}
