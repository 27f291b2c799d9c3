"""Exclusive writers against a real server, as programs use them."""

# Nobody needs to look at the future of a write: flush and leaving the writer raise what went wrong.
# mypy: disable-error-code="unused-awaitable"

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millrace
from millrace import blocking
from millrace.client.client import Client
from millrace.client.errors import StreamHasExclusiveWriterError, TailChangedError, WriterFencedError
from millrace.client.testing import TestServer
from millrace.client.write.exclusive import OPENING_NAME
from millrace.model.cut import HEAD, TAIL, StreamCut
from millrace.model.errors import InvalidArgumentError
from millrace.model.event_times import EventTimeBounds
from millrace.model.policy import ScalingPolicy, StreamConfig
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.asyncio


async def values_of(client: Client, stream: str) -> list[bytes]:
    async with client.reader(stream, end=TAIL) as reader:
        return [event.value async for event in reader]


async def test_a_stream_takes_events_from_its_exclusive_writer_alone(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name) as other, client.writer(name, writer_id=f"{name}:w", exclusive=True) as writer:
        await writer.write(b"1", key="k")
        with pytest.raises(StreamHasExclusiveWriterError, match=f"only from writer '{name}:w'"):
            await other.write(b"lost", key="k")
        with pytest.raises(StreamHasExclusiveWriterError):
            await client.writer(name).open()
        with pytest.raises(StreamHasExclusiveWriterError):
            await other.flush()
        await writer.write(b"2", key="k")
        holder = (await client.stream_info(name)).exclusive_writer
        assert holder is not None
        assert (holder.writer_id, holder.number, holder.epoch) == (f"{name}:w", writer.number, writer.epoch)
    assert await values_of(client, name) == [b"1", b"2"]


async def test_bytes_are_refused_too(client: Client, name: str) -> None:
    await client.create_stream(name)
    raw = client.byte_writer(name)
    await raw.__aenter__()
    await client.writer(name, writer_id=f"{name}:w", exclusive=True).open()
    await raw.write(b"raw")
    for end in (raw.flush, raw.close):
        with pytest.raises(StreamHasExclusiveWriterError):
            await end()


async def test_a_writer_with_an_id_keeps_the_stream_and_one_without_gives_it_back(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name, exclusive=True) as writer:
        await writer.write(b"1")
    assert (await client.stream_info(name)).exclusive_writer is None

    async with client.writer(name, writer_id=f"{name}:w", exclusive=True) as writer:
        await writer.write(b"2")
    with pytest.raises(StreamHasExclusiveWriterError):
        await client.writer(name).open()
    async with client.writer(name, writer_id=f"{name}:w", exclusive=True) as writer:
        await writer.write(b"3")
        writer.write(b"4")
        await writer.release()
        await writer.release()
        async with client.writer(name) as other:
            await other.write(b"5")
        await writer.write(b"6")
    assert await values_of(client, name) == [b"1", b"2", b"3", b"4", b"5", b"6"]


async def test_only_an_exclusive_writer_releases(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name) as writer:
        with pytest.raises(InvalidArgumentError, match="needs an exclusive writer"):
            await writer.release()


async def test_a_writer_that_is_left_by_an_error_gives_the_stream_back(client: Client, name: str) -> None:
    await client.create_stream(name)
    with pytest.raises(KeyError):
        async with client.writer(name, exclusive=True):
            raise KeyError
    assert (await client.stream_info(name)).exclusive_writer is None


async def test_a_writer_without_an_id_whose_block_is_cancelled_releases_the_stream(client: Client, name: str) -> None:
    """Nobody could open it again. The events that were sent before are stored before."""
    await client.create_stream(name)

    async def write() -> None:
        async with client.writer(name, exclusive=True) as writer:
            await writer.write(b"1")
            asyncio.current_task().cancel()  # type: ignore[union-attr]  # this is a task
            await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(write())
    async with client.writer(name) as other:
        await other.write(b"2")
    assert await values_of(client, name) == [b"1", b"2"]


async def test_a_writer_without_an_id_that_loses_events_releases_the_stream(client: Client, name: str) -> None:
    await client.create_stream(name, StreamConfig(event_times=EventTimeBounds(past_s_max=60)))
    writer = client.writer(name, exclusive=True)
    await writer.open()
    writer.write(b"old", timestamp_us=1)
    with pytest.raises(millrace.EventTimeError):
        await writer.close()
    async with client.writer(name) as other:
        await other.write(b"new")


async def test_a_cancelled_opening_leaves_the_stream_to_all(client: Client, name: str) -> None:
    """Whenever it is cancelled: before the request is sent, while the server works, and when the reply is there."""
    await client.create_stream(name)
    cancelled_count, turns = 0, 0
    while cancelled_count == turns.bit_length():
        opening = asyncio.create_task(client.writer(name, exclusive=True).open())
        for _ in range(turns):
            await asyncio.sleep(0)
        cancelled_count += opening.cancel()
        await asyncio.wait((opening,))
        await until(lambda: not any(task.get_name() == OPENING_NAME for task in asyncio.all_tasks()))
        if opening.cancelled():
            async with asyncio.timeout(PATIENCE_S):
                while (await client.stream_info(name)).exclusive_writer is not None:
                    pass  # the release is on its way
        turns = turns * 2 or 1
    assert cancelled_count >= 3


async def test_a_stream_that_is_gone_needs_no_release(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name, exclusive=True) as writer:
        await writer.write(b"1")
        await client.seal_stream(name)
        await client.delete_stream(name)


async def test_a_state_machine_appends_only_to_what_it_has_read(client: Client, name: str) -> None:
    """Two who read the stream, decide, and append: each decision rests on all that is before it."""
    await client.create_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(2)))

    async def add(writer_id: str) -> int:
        attempts = 0
        while True:
            attempts += 1
            async with client.reader(name, start=HEAD, end=TAIL) as reader:
                total = sum([int(event.value) async for event in reader])
                seen = reader.position()
            try:
                async with client.writer(name, writer_id=writer_id, exclusive=True, expected=seen) as writer:
                    await writer.write(b"%d" % (total + 1), key=f"k{total % 5}")
                    return attempts
            except (TailChangedError, WriterFencedError, StreamHasExclusiveWriterError):
                continue

    await asyncio.gather(*(add(f"{name}:{number}") for number in range(4)))

    assert sorted(int(value) for value in await values_of(client, name)) == [1, 2, 4, 8]


async def test_where_the_stream_does_not_end_is_told(client: Client, name: str) -> None:
    await client.create_stream(name)
    start = await client.stream_cut(name)
    async with client.writer(name) as writer:
        await writer.write(b"1")
    end = await client.stream_cut(name)

    with pytest.raises(TailChangedError, match=f"expected to end at {start}, and ends at {end}") as caught:
        await client.writer(name, exclusive=True, expected=start).open()
    assert (caught.value.subject, caught.value.retriable) == (name, False)
    assert (await client.stream_info(name)).exclusive_writer is None


async def test_what_is_expected_may_be_said_in_words(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with client.writer(name, exclusive=True, expected=HEAD) as writer:
        await writer.write(b"first")
    await client.bookmarks(name).save("end")
    for place in ("tail", TAIL, str(await client.stream_cut(name)), "bookmark:end", timedelta(0), datetime.now(UTC)):
        async with client.writer(name, exclusive=True, expected=place):
            pass

    start = await client.stream_cut(name).head()
    for place in ("head", "1h ago"):
        with pytest.raises(TailChangedError, match=f"expected to end at {start}"):
            await client.writer(name, exclusive=True, expected=place).open()


async def test_what_is_expected_is_a_place_in_the_stream(client: Client, name: str) -> None:
    await client.create_stream(name)
    cut = await client.stream_cut(name)
    wrong: list[dict[str, Any]] = [
        {"expected": cut},
        {"expected": StreamCut.of("another/stream", {1: (0, 0)}), "exclusive": True},
        {"expected": "yesterday", "exclusive": True},
    ]
    for arguments in wrong:
        with pytest.raises(InvalidArgumentError):
            client.writer(name, **arguments)


async def test_a_stream_is_scaled_under_its_exclusive_writer(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with AsyncExitStack() as stack:
        writer = await stack.enter_async_context(client.writer(name, writer_id=f"{name}:w", exclusive=True))
        for count in (3, 1, 2):
            for number in range(20):
                writer.write(b"%d" % number, key=f"k{number}")
            await client.update_stream(name, StreamConfig(scaling=ScalingPolicy.fixed(count)))
            with pytest.raises(StreamHasExclusiveWriterError):
                await client.writer(name).open()
        await writer.flush()
        assert writer.statistics().reroutes
    assert len(await values_of(client, name)) == 60


async def test_who_is_taken_over_from_fails(client: Client, name: str) -> None:
    await client.create_stream(name)
    first = client.writer(name, writer_id=f"{name}:a", exclusive=True)
    await first.open()
    await first.write(b"1")
    async with client.writer(name, writer_id=f"{name}:b", exclusive=True) as second:
        with pytest.raises(WriterFencedError):
            await first.write(b"lost")
        await second.write(b"2")
        await second.release()
    with pytest.raises(WriterFencedError):
        await first.close()
    assert await values_of(client, name) == [b"1", b"2"]


async def test_a_release_by_force_fences(client: Client, name: str) -> None:
    await client.create_stream(name)
    async with AsyncExitStack() as stack:
        writer = await stack.enter_async_context(client.writer(name, writer_id=f"{name}:w", exclusive=True))
        assert await client.release_stream(name)
        assert not await client.release_stream(name)
        with pytest.raises(WriterFencedError):
            await writer.write(b"lost")
        with pytest.raises(WriterFencedError):
            await stack.aclose()
    async with client.writer(name) as other:
        await other.write(b"1")
    assert await values_of(client, name) == [b"1"]


@pytest.mark.slow
async def test_a_server_that_is_killed_remembers_it(millrace_server: TestServer, name: str) -> None:
    async with millrace.connect(millrace_server.address) as client:
        await client.create_stream(name)
        async with client.writer(name, writer_id="w", exclusive=True) as writer:
            await writer.write(b"1")
            await asyncio.to_thread(millrace_server.kill)
            await asyncio.to_thread(millrace_server.start)
            with pytest.raises(StreamHasExclusiveWriterError):
                await client.writer(name).open()
            await writer.write(b"2")
            end = await client.stream_cut(name)
            await asyncio.to_thread(millrace_server.kill)
            await asyncio.to_thread(millrace_server.start)
        async with client.writer(name, writer_id="w", exclusive=True, expected=end) as writer:
            await writer.release()
        async with client.writer(name) as other:
            await other.write(b"3")
        assert await values_of(client, name) == [b"1", b"2", b"3"]


async def test_threads_have_the_same(server: TestServer, name: str) -> None:
    def work() -> None:
        with blocking.connect(server.address) as client:
            client.create_stream(name)
            cut = client.stream_cut(name)
            with client.writer(name, writer_id=f"{name}:w", exclusive=True, expected=cut) as writer:
                writer.write(b"1")
                with pytest.raises(StreamHasExclusiveWriterError):
                    client.writer(name)
                writer.release()
                client.writer(name).close()
            with pytest.raises(TailChangedError):
                client.writer(name, exclusive=True, expected=cut)
            assert not client.release_stream(name)

    await asyncio.to_thread(work)
