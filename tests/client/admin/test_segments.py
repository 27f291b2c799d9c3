import asyncio

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.errors import (
    AttributeConditionFailedError,
    ConditionFailedError,
    OffsetBeyondEndError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentTruncatedError,
)
from millrace.client.testing import TestServer
from millrace.model.errors import EventTooLargeError, InvalidArgumentError, InvalidNameError
from millrace.model.limits import APPEND_SIZE_BYTES_MAX

pytestmark = pytest.mark.asyncio


async def test_a_segment_lives_from_create_to_delete(client: Client, name: str) -> None:
    """Behaviour 19."""
    segments = client.segments
    created = await segments.create(name)
    with pytest.raises(SegmentExistsError):
        await segments.create(name)
    assert await segments.append(name, b"hello ") == 0
    assert await segments.append(name, bytearray(b"world")) == 6

    assert (await segments.truncate(name, 6)).start_offset == 6
    assert (await segments.truncate(name, 6)).start_offset == 6
    with pytest.raises(OffsetBeyondEndError):
        await segments.truncate(name, 12)
    assert (await segments.read(name, 6)).data == b"world"
    assert (await segments.seal(name)).sealed
    assert (await segments.seal(name)).sealed
    with pytest.raises(SegmentSealedError):
        await segments.append(name, b"!")
    assert await segments.delete(name)
    assert not await segments.delete(name)

    again = await segments.create(name)
    assert again.segment_id != created.segment_id
    assert await segments.append(name, b"new") == 0


async def test_a_name_deleted_and_created_elsewhere_is_found_again(client: Client, name: str) -> None:
    """Behaviour 19: nothing old shines through, not even an id that was remembered."""
    await client.segments.create(name)
    await client.segments.append(name, b"old")
    async with millrace.connect(str(client.address)) as other:
        await other.segments.delete(name)
        with pytest.raises(SegmentNotFoundError):
            await client.segments.append(name, b"x")
        await other.segments.create(name)

    assert await client.segments.append(name, b"new") == 0
    assert (await client.segments.read(name, 0)).data == b"new"


async def test_an_expected_offset_decides(client: Client, name: str) -> None:
    """Behaviour 11."""
    await client.segments.create(name)
    assert await client.segments.append(name, b"abc", expected_offset=0) == 0
    with pytest.raises(ConditionFailedError) as caught:
        await client.segments.append(name, b"def", expected_offset=0)
    assert caught.value.length == 3
    assert await client.segments.append(name, b"def", expected_offset=3) == 3


async def test_one_winner_per_offset(client: Client, name: str) -> None:
    """Behaviour 12: wins = records stored."""
    await client.segments.create(name)

    async def compete(mark: bytes) -> int:
        wins = 0
        for _ in range(20):
            length = (await client.segments.info(name)).length
            try:
                await client.segments.append(name, mark, expected_offset=length)
                wins += 1
            except ConditionFailedError:
                pass
        return wins

    wins = await asyncio.gather(*[compete(bytes([65 + number])) for number in range(5)])

    data = (await client.segments.read(name, 0)).data
    assert [data.count(bytes([65 + number])) for number in range(5)] == list(wins)
    assert len(data) == sum(wins)


async def test_attributes_are_compared_and_set(millrace_server: TestServer, name: str) -> None:
    """Behaviour 13: survives a restart; absent is a value."""
    async with millrace.connect(millrace_server.address) as client:
        segments = client.segments
        await segments.create(name)
        assert await segments.get_attribute(name, "owner") is None
        await segments.set_attribute(name, "owner", expected=None, value=b"a")
        with pytest.raises(AttributeConditionFailedError):
            await segments.set_attribute(name, "owner", expected=None, value=b"b")
        await segments.set_attribute(name, "owner", expected=b"a", value=b"")
        await asyncio.to_thread(millrace_server.restart)
        assert await segments.get_attribute(name, "owner") == b""
        await segments.set_attribute(name, "owner", expected=b"", value=None)
        assert await segments.get_attribute(name, "owner") is None


async def test_a_read_at_the_tail_waits_for_data(client: Client, name: str) -> None:
    """Behaviour 14."""
    await client.segments.create(name)
    empty = await client.segments.read(name, 0)
    assert (empty.data, empty.at_tail, empty.end_of_segment) == (b"", True, False)

    waiting = asyncio.create_task(client.segments.read(name, 0, wait_s=30))
    await client.segments.append(name, b"x")
    assert (await waiting).data == b"x"


async def test_the_end_of_a_sealed_segment_is_said_at_once(client: Client, name: str) -> None:
    """Behaviour 15: a parked reader is released by the seal."""
    await client.segments.create(name)
    await client.segments.append(name, b"x")
    parked = asyncio.create_task(client.segments.read(name, 1, wait_s=30))
    await client.ping()
    await client.segments.seal(name)

    assert (await parked).end_of_segment
    result = await client.segments.read(name, 1, wait_s=30)
    assert (result.data, result.end_of_segment) == (b"", True)


async def test_places_outside_of_a_segment_are_named(client: Client, name: str) -> None:
    """Behaviour 16."""
    await client.segments.create(name)
    await client.segments.append(name, b"0123456789")
    await client.segments.truncate(name, 4)

    with pytest.raises(SegmentTruncatedError) as truncated:
        await client.segments.read(name, 3)
    assert (truncated.value.start_offset, truncated.value.length) == (4, 10)
    with pytest.raises(OffsetBeyondEndError) as beyond:
        await client.segments.read(name, 11)
    assert beyond.value.length == 10
    assert (await client.segments.read(name, 4, max_bytes=3)).data == b"456"


async def test_a_tail_pushes_what_becomes_durable_until_the_seal(client: Client, name: str) -> None:
    await client.segments.create(name)
    await client.segments.append(name, b"a")

    async def follow() -> list[tuple[int, bytes]]:
        return [(chunk.offset, chunk.data) async for chunk in client.segments.tail(name, 0)]

    following = asyncio.create_task(follow())
    for piece in (b"b", b"c", b"d"):
        await client.segments.append(name, piece)
    await client.segments.seal(name)

    chunks = await following
    assert b"".join(data for _, data in chunks) == b"abcd"
    assert [offset for offset, _ in chunks] == sorted({offset for offset, _ in chunks})


async def test_a_tail_from_the_tail_skips_what_was_there(client: Client, name: str) -> None:
    await client.segments.create(name)
    await client.segments.append(name, b"old")
    tail = client.segments.tail(name)
    first = asyncio.create_task(anext(tail))
    while client.statistics().reads.connects == 0:  # it subscribes after what it found
        await client.ping()
    await client.segments.append(name, b"new")

    assert (await first).data == b"new"
    await tail.aclose()


async def test_a_tail_continues_after_a_restart(millrace_server: TestServer, name: str) -> None:
    """Neither a gap nor a repeat."""
    async with millrace.connect(millrace_server.address) as client:
        await client.segments.create(name)
        await client.segments.append(name, b"one")
        tail = client.segments.tail(name, 0)
        assert (await anext(tail)).data == b"one"
        await asyncio.to_thread(millrace_server.kill)
        await asyncio.to_thread(millrace_server.start)
        await client.segments.append(name, b"two")
        await client.segments.seal(name)
        assert [chunk.data async for chunk in tail] == [b"two"]


async def test_the_largest_append_is_stored_and_one_byte_more_is_not_sent(client: Client, name: str) -> None:
    """Behaviour 8."""
    await client.segments.create(name)
    assert await client.segments.append(name, bytes(APPEND_SIZE_BYTES_MAX)) == 0
    with pytest.raises(EventTooLargeError):
        await client.segments.append(name, bytes(APPEND_SIZE_BYTES_MAX + 1))
    assert (await client.segments.info(name)).length == APPEND_SIZE_BYTES_MAX


async def test_segments_are_listed_by_prefix(client: Client) -> None:
    names = [f"listed/{number:02}" for number in range(5)]
    for name in names:
        await client.segments.create(name)

    assert [info.name async for info in client.segments.list("listed/")] == names
    assert [info.name async for info in client.segments.list("listed/03")] == ["listed/03"]
    assert [info.name async for info in client.segments.list("nothing")] == []


@pytest.mark.parametrize("wrong", ["", "a", "../x", "a/b/c", "a/\n", "a/" + "b" * 101, "/b", "a/é", "a/b#x"])
async def test_names_outside_the_rule_are_refused(client: Client, wrong: str) -> None:
    """Behaviour 52."""
    with pytest.raises(InvalidNameError):
        await client.segments.create(wrong)


async def test_arguments_that_make_no_sense_are_refused(client: Client, name: str) -> None:
    await client.segments.create(name)
    with pytest.raises(InvalidArgumentError):
        await client.segments.append(name, b"x", expected_offset=-2)
    handle = await client.segments.open(name)
    with pytest.raises(InvalidArgumentError):
        await handle.append(b"x", expected_offset=-1)
    with pytest.raises(InvalidArgumentError):
        await client.segments.read(name, -1)
    with pytest.raises(TypeError):
        await client.segments.append(name, "text")  # type: ignore[arg-type]  # wrong on purpose


async def test_a_merge_can_be_repeated(client: Client, name: str) -> None:
    """Behaviour 20: by name, though the source is gone then."""
    segments = client.segments
    source = f"{name}-source"
    for each in (name, source):
        await segments.create(each)
    await segments.append(source, b"bytes")
    await segments.seal(source)

    assert [(await segments.merge(name, source=source)).length for _ in range(3)] == [5, 5, 5]
    with pytest.raises(SegmentNotFoundError):
        await segments.merge(name, source=f"{name}-other")
