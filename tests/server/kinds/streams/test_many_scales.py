"""The cost of a scaling does not grow with what was scaled before; counted, not timed. Behaviour 106."""

import asyncio
import json
from itertools import pairwise

import pytest

from millrace.model.key_range import KEY_SPACE
from millrace.model.lineage import Lineage
from millrace.server.container.entity_cache import Pins
from millrace.server.container.state.stream import Stream
from millrace.server.errors import InvalidArgumentError
from millrace.server.kinds.streams import commands, part_count, truncation
from millrace.server.kinds.streams.truncation import POSITIONS_PER_RECORD_COUNT_MAX
from millrace.wire import messages as m
from millrace.wire.framing import encode
from millrace.wire.limits import RECORD_SIZE_BYTES_MAX
from tests.server.streams.containers import Streams

pytestmark = pytest.mark.asyncio

WHOLE = [m.KeyRangeRecord(0, 2**64 - 1)]
HALVES = [m.KeyRangeRecord(0, 2**63 - 1), m.KeyRangeRecord(2**63, 2**64 - 1)]
SCALES_COUNT = 300
BY_EVENTS = json.dumps({"scaling": {"kind": "events", "target_per_s": 10, "min_segments": 1}})


async def scale(streams: Streams, *, is_written: bool = True) -> Stream:
    """Split the stream, or merge it if it was split; write to each segment first, so that none is dropped."""
    stream = streams.controller.find("a/b")
    opened = stream.open_ids
    if is_written:
        for segment_id in opened:
            await streams.append(segment_id, bytes(10))
    ranges = HALVES if len(opened) == 1 else WHOLE
    return await streams.controller.scale("a/b", sealed_ids=opened, ranges=ranges, cause="for a test")


def touched(streams: Streams, message: m.Message) -> int:
    """Return how many segments and streams are held in memory for a request or a record."""
    with Pins() as pins:
        streams.opened.container.state.pin_required(m.required_entities(message), into=pins)
        return len(pins)


def costs(streams: Streams, stream: Stream) -> dict[str, int]:
    """Return what a scaling of the stream needs, and what its readers and writers get from the server afterwards."""
    opened = stream.open_ids
    later = m.StreamScaled(
        stream_id=stream.stream_id, epoch=stream.epoch + 1, scaled_us=0, cause="", sealed_ids=opened, created=[]
    )
    following = m.GetStream("a/b", replaced_from=stream.epoch)  # a reader of what was just replaced
    return {
        "bytes of the reply": len(encode(streams.controller.describe(stream), request_id=1)),
        "bytes for a writer": len(
            encode(streams.controller.describe_page(stream, m.GetStream("a/b", m.NOT_REPLACED)), request_id=1)
        ),
        "bytes for a reader": len(encode(streams.controller.describe_page(stream, following), request_id=1)),
        "entities of the request": touched(streams, m.ScaleStream("a/b", opened, HALVES)),
        "entities of the record": touched(streams, later),
        "parts for the check of a cut at the tail": len(stream.parts_around(opened)),
    }


async def test_a_late_scaling_costs_what_the_first_did(streams: Streams) -> None:
    """Behaviour 106."""
    await scale(streams)
    stream = await scale(streams)
    early = costs(streams, stream)

    for _ in range(SCALES_COUNT):
        stream = await scale(streams)

    assert stream.part_count > SCALES_COUNT
    assert costs(streams, stream) == early


@pytest.mark.parametrize("is_written", [False, True])
async def test_a_visit_of_the_policies_loads_the_open_segments_only(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, *, is_written: bool
) -> None:
    """Behaviour 106: scaling by load, and the lag of a cursor at the tail, do not depend on replaced segments."""
    counts: list[int] = []
    loader = streams.opened.container.loader
    pin = loader.pin

    async def counted(required: m.Required) -> Pins:
        pins = await pin(required)
        counts.append(len(pins))
        return pins

    await streams.controller.update("a/b", configuration=BY_EVENTS)
    for _ in range(20):
        await scale(streams, is_written=is_written)
    stream = streams.controller.find("a/b")
    tail = [m.SavedPosition(segment_id, 0, 0) for segment_id in stream.open_ids]
    await streams.controller.save_cuts("a/b", [m.NamedCut(m.CutKind.CURSOR, "at-tail", tail)])
    monkeypatch.setattr(loader, "pin", counted)

    streams.clock.move(2.0)
    await streams.runner.scale()
    await streams.runner.measure()

    assert stream.part_count > 20
    assert counts
    assert max(counts) <= 1 + len(stream.open_ids)  # the stream, and its open segments


async def test_one_record_of_a_truncation_names_many_segments() -> None:
    positions = [m.SavedPosition(number, 0, 0) for number in range(POSITIONS_PER_RECORD_COUNT_MAX)]
    assert len(encode(m.StreamStartMoved(1, positions))) < RECORD_SIZE_BYTES_MAX


@pytest.mark.parametrize("is_written", [False, True])
async def test_a_long_stream_is_truncated_in_steps(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, *, is_written: bool
) -> None:
    """Behaviour 106: however many segments are before the cut, no record names more than its bound."""
    monkeypatch.setattr(truncation, "POSITIONS_PER_RECORD_COUNT_MAX", 7)
    for _ in range(30):
        await scale(streams, is_written=is_written)
    stream = streams.controller.find("a/b")
    opened = stream.open_ids
    for segment_id in opened:
        await streams.append(segment_id, bytes(10))
    records: list[m.StreamStartMoved] = []
    decide = streams.opened.container.decide

    def recorded(record: m.Record, *names: str) -> asyncio.Future[None]:
        assert isinstance(record, m.StreamStartMoved)
        records.append(record)
        return decide(record, *names)

    monkeypatch.setattr(streams.opened.container, "decide", recorded)

    with streams.opened.container.state.streams.pin(["a/b"]) as pins:
        streams.opened.container.state.pin_required(m.Required(streams=["a/b"]), into=pins)
        await streams.controller.truncate("a/b", [m.SavedPosition(segment_id, 10, 0) for segment_id in opened])

    assert stream.segment_ids == opened
    assert len(records) > 5
    assert all(len(record.positions) <= 7 for record in records)
    _, head = stream.head()
    assert [part.segment_id for part in head] == [part.segment_id for part in stream.open_parts]


async def test_each_step_of_a_truncation_leaves_a_head_that_covers_every_key(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behaviour 106: a crash between two steps, or a reader that starts there, finds a cut."""
    monkeypatch.setattr(truncation, "POSITIONS_PER_RECORD_COUNT_MAX", 9)

    async def replace(sealed_ids: list[int], *borders: int) -> list[int]:
        for segment_id in sealed_ids:
            await streams.append(segment_id, bytes(10))
        ranges = [m.KeyRangeRecord(low, high - 1) for low, high in pairwise(borders)]
        scaled = await streams.controller.scale("a/b", sealed_ids=sealed_ids, ranges=ranges, cause="for a test")
        return [part.segment_id for part in scaled.open_parts]

    quarter = KEY_SPACE // 4
    halves = await replace(streams.controller.find("a/b").open_ids, 0, 2 * quarter, KEY_SPACE)
    first, _ = await replace(halves, 0, quarter, KEY_SPACE)  # the second one replaces parts of both halves
    for _ in range(20):
        first, _ = await replace([first], 0, quarter)
    stream = streams.controller.find("a/b")
    for segment_id in stream.open_ids:
        await streams.append(segment_id, bytes(10))
    heads: list[list[int]] = []
    decide = streams.opened.container.decide

    async def checked(record: m.Record, *names: str) -> None:
        await decide(record, *names)
        heads.append([part.segment_id for part in stream.head()[1]])
        Lineage(stream.parts).check_cut(heads[-1])
        assert {part.segment_id for part in Lineage(stream.parts).head()} == {*heads[-1]}

    monkeypatch.setattr(streams.opened.container, "decide", checked)
    with streams.opened.container.state.streams.pin(["a/b"]) as pins:
        streams.opened.container.state.pin_required(m.Required(streams=["a/b"]), into=pins)
        await streams.controller.truncate("a/b", [m.SavedPosition(each, 10, 0) for each in stream.open_ids])

    assert len(heads) > 3
    assert stream.part_count == 2


async def test_empty_segments_do_not_count_against_the_bound(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behaviour 106: a stream without new events can be scaled any number of times, and is never truncated."""
    monkeypatch.setattr(part_count, "PARTS_PER_STREAM_COUNT_MAX", 10)
    for _ in range(30):
        await scale(streams, is_written=False)
    stream = streams.controller.find("a/b")
    assert (stream.part_count, stream.empty_count) == (46, 45)

    for _ in range(6):
        await scale(streams)
    assert stream.part_count - stream.empty_count == 10
    with pytest.raises(InvalidArgumentError, match="the stream has 10 segments that are open, or hold events"):
        await scale(streams)


@pytest.mark.parametrize("is_written", [False, True])
async def test_the_head_has_the_first_segments_with_events(streams: Streams, *, is_written: bool) -> None:
    """Behaviour 106: what a reader at HEAD gets and loads does not depend on what was replaced before, or since."""
    for _ in range(5):
        await scale(streams, is_written=False)
    first = streams.controller.find("a/b").open_ids
    for _ in range(100):
        await scale(streams, is_written=is_written)
    stream = streams.controller.find("a/b")
    request = m.GetStream("a/b", m.AT_HEAD)

    page = streams.controller.describe_page(stream, request)

    expected, epoch = (first, 5) if is_written else (stream.open_ids, stream.epoch)
    assert [segment.segment_id for segment in page.segments] == expected
    assert [segment.sealed_epoch for segment in page.segments] == [0] * len(expected)
    assert (page.epoch, page.replaced_from, page.next_epoch) == (epoch, 0, 0)
    assert streams.controller.page_ids(stream, request) == expected
    # What a reader asks for when it has read these.
    later = streams.controller.describe_page(stream, m.GetStream("a/b", page.epoch + 1))
    assert {segment.segment_id for segment in later.segments} >= set(expected)


async def test_pages_show_every_segment_once(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behaviour 106: a stream of any number of segments is described, and each page has its bound."""
    monkeypatch.setattr(commands, "PAGE_COUNT", 7)
    for _ in range(40):
        await scale(streams)
    stream = streams.controller.find("a/b")
    first = page = streams.controller.describe(stream, replaced_from=0)
    found = list(first.segments)
    assert [segment.segment_id for segment in found][: len(stream.open_ids)] == stream.open_ids
    await scale(streams)  # what comes after the first page is on no other page
    while page.next_epoch:
        request = m.GetStream("a/b", page.next_epoch, page_of=first.epoch, is_next=1)
        page = streams.controller.describe_page(stream, request)
        assert len(page.segments) <= 7 + 2
        assert page.replaced_count == first.replaced_count
        found += page.segments
    ids = [segment.segment_id for segment in found]
    assert len(set(ids)) == len(ids)
    created = {segment_id for epoch in stream.epochs[:-1] for segment_id, _, _ in epoch.created}
    assert set(ids) == created
