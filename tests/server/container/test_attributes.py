"""The attributes of a segment, and of all segments, are bounded in bytes."""

from dataclasses import replace

import pytest

from millrace.server.container.options import ContainerOptions
from millrace.server.container.state.segment import ATTRIBUTE_OVERHEAD_BYTES
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode
from millrace.wire.limits import KIB
from tests.support.protocol import Peer, RefusedError, code_of, set_attribute
from tests.support.scenario import Run, Scenario
from tests.support.servers import QUIET

SMALL = replace(QUIET, idle_bytes_max=0, attributes_segment_bytes_max=4 * KIB, attributes_bytes_max=10 * KIB)
OF_ONE = KIB - ATTRIBUTE_OVERHEAD_BYTES - 1
"""The size of a value that makes a kibibyte of an attribute with a key of one letter."""


def bytes_of(run: Run) -> tuple[int, int]:
    state = run.state
    return state.attribute_bytes, state.admitted_attribute_bytes


async def put(peer: Peer, segment_id: int, key: str, size: int | None, *, expected: int | None = None) -> None:
    await peer.ask(
        set_attribute(
            segment_id,
            key,
            expected=None if expected is None else bytes(expected),
            value=None if size is None else bytes(size),
        ),
        m.Attribute,
    )


@pytest.mark.asyncio
async def test_attributes_of_a_segment_are_bounded(scenario: Scenario) -> None:
    """Behaviour 86: the refusal names limit and setting; what makes room is not refused."""
    async with scenario.running(container=SMALL) as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        for key in "abcd":
            await put(peer, segment_id, key, OF_ONE)
        with pytest.raises(RefusedError) as caught:
            await put(peer, segment_id, "e", 0)
        assert caught.value.code is ErrorCode.ATTRIBUTES_FULL
        assert not caught.value.reply.retriable
        assert "4096" in caught.value.reply.message
        assert "MILLRACE_CONTAINER_ATTRIBUTES_SEGMENT_BYTES_MAX" in caught.value.reply.message
        assert await code_of(put(peer, segment_id, "a", OF_ONE + 1, expected=OF_ONE)) is ErrorCode.ATTRIBUTES_FULL
        await put(peer, segment_id, "a", OF_ONE - 300, expected=OF_ONE)
        await put(peer, segment_id, "b", None, expected=OF_ONE)
        await put(peer, segment_id, "e", OF_ONE)
        assert bytes_of(run) == (4 * KIB - 300, 4 * KIB - 300)


@pytest.mark.asyncio
async def test_attributes_of_all_segments_are_bounded_across_restarts(scenario: Scenario) -> None:
    """Behaviour 86: also of those that are not in memory; a deleted segment gives its room back."""
    container = replace(SMALL, attributes_segment_bytes_max=8 * KIB)
    ids = []
    async with scenario.running(container=container) as run, run.peer() as peer:
        for number in range(3):
            ids.append(await peer.create_segment(f"raw/{number}"))
            for key in "abc":
                await put(peer, ids[-1], key, OF_ONE)
        await run.opened.flusher.checkpoint()
    for _ in range(2):
        async with scenario.running(container=container) as run, run.peer() as peer:
            assert bytes_of(run) == (9 * KIB, 9 * KIB)
            with pytest.raises(RefusedError) as caught:
                await put(peer, ids[0], "d", OF_ONE + 1)
            assert caught.value.code is ErrorCode.ATTRIBUTES_FULL
            assert "MILLRACE_CONTAINER_ATTRIBUTES_BYTES_MAX" in caught.value.reply.message
            await put(peer, ids[0], "d", OF_ONE)
            await put(peer, ids[0], "d", None, expected=OF_ONE)
    async with scenario.running(container=container) as run, run.peer() as peer:
        await peer.ask(m.DeleteSegment(ids[1]), m.Done)
        assert bytes_of(run) == (6 * KIB, 6 * KIB)
        await put(peer, ids[0], "d", OF_ONE)


@pytest.mark.asyncio
async def test_what_is_admitted_and_not_durable_counts(scenario: Scenario) -> None:
    """Behaviour 86: many requests at once do not pass the limit together."""
    async with scenario.running(container=SMALL) as run, run.peer() as peer:
        segment_id = await peer.create_segment("raw/a")
        requests = [
            await peer.start(set_attribute(segment_id, chr(97 + number), expected=None, value=bytes(OF_ONE)))
            for number in range(20)
        ]
        codes: list[ErrorCode | None] = []
        for request_id in requests:
            try:
                await peer.reply(request_id, m.Attribute)
                codes.append(None)
            except RefusedError as error:
                codes.append(error.code)
        assert codes.count(None) == 4
        assert codes.count(ErrorCode.ATTRIBUTES_FULL) == 16
        assert bytes_of(run) == (4 * KIB, 4 * KIB)


def test_the_limits_are_those_of_the_documents() -> None:
    assert ContainerOptions().attributes_segment_bytes_max == 1 << 20
    assert ContainerOptions().attributes_bytes_max == 256 << 20
    assert ContainerOptions().idle_bytes_max == 128 << 20
