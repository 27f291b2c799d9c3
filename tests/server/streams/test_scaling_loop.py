"""Scaling and retention on a real container, under a clock that the test moves."""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from millrace.model.key_range import KEY_SPACE, key_place
from millrace.server.container.in_flight import PENDING_SIZE_BYTES
from millrace.server.streams import StreamsOptions
from millrace.wire import messages as m
from tests.server.streams.containers import Streams, streams_in
from tests.support.clock import ManualClock
from tests.support.files import MemoryFileSystem
from tests.support.storage import MemoryStorage
from tests.support.waiting import PATIENCE_S, until

DAY_S = 86_400

BY_EVENTS = json.dumps({"scaling": {"kind": "events", "target_per_s": 10, "min_segments": 1}})
KEYS = [f"key-{number}" for number in range(64)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest_asyncio.fixture
async def streams(tmp_path: Path, storage: MemoryStorage, clock: ManualClock) -> AsyncIterator[Streams]:
    async with streams_in(tmp_path, storage=storage, clock=clock) as opened:
        yield opened


async def drive(streams: Streams, name: str, keys: list[str], *, seconds: int) -> None:
    """Write these keys every 2 seconds, each where it belongs, and let the runner look."""
    for _ in range(seconds // 2):
        for part in streams.controller.find(name).open_parts:
            mine = [key for key in keys if part.key_range.low <= key_place(key) <= part.key_range.last]
            if mine:
                await streams.write(part.segment_id, mine)
        streams.clock.move(2.0)
        await streams.runner.scale()


def retaining(**bounds: object) -> str:
    return json.dumps({"retention": bounds})


@pytest.mark.asyncio
async def test_load_makes_a_stream_split_and_silence_makes_it_merge(streams: Streams) -> None:
    """Behaviour 24: splits where the load is within a minute, merges when it is gone."""
    await streams.controller.create("shop/orders", segment_count=1, configuration=BY_EVENTS)
    low_keys = sorted(KEYS, key=key_place)[:32]
    await drive(streams, "shop/orders", low_keys, seconds=40)

    stream = streams.controller.find("shop/orders")
    first, second = stream.open_parts
    assert stream.epoch == 1
    assert first.key_range.last < KEY_SPACE // 3
    assert second.key_range.low == key_place(low_keys[16])
    assert streams.runner.statistics.splits_total == 1
    assert stream.epochs[1].cause.startswith("split: 16 events/s, above its target of 10")

    await drive(streams, "shop/orders", [], seconds=300)
    assert len(stream.open_parts) == 1
    assert streams.runner.statistics.merges_total == 1
    assert stream.epochs[-1].cause.startswith("merge: ")


@pytest.mark.asyncio
async def test_a_plan_of_a_policy_that_is_replaced_meanwhile_is_dropped(tmp_path: Path, storage: MemoryStorage) -> None:
    """Behaviour 24: here the stream has fewer segments than the old policy demands, and as many as the new one."""
    (tmp_path / "wal").mkdir()
    files = MemoryFileSystem()
    four = json.dumps({"scaling": {"kind": "events", "target_per_s": 10, "min_segments": 4}})
    two = json.dumps({"scaling": {"kind": "fixed", "segment_count": 2}})
    async with streams_in(tmp_path, storage=storage, clock=ManualClock(), files=files) as streams:
        await streams.controller.create("shop/orders", segment_count=2, configuration=four)
        stream = streams.controller.find("shop/orders")
        files.stall()
        updating = asyncio.create_task(streams.controller.update("shop/orders", configuration=two))
        await asyncio.to_thread(files.stalled.wait)
        scaling = asyncio.create_task(streams.runner.scale())
        in_flight = streams.opened.container.in_flight
        await until(lambda: in_flight.held_bytes > len(in_flight) * PENDING_SIZE_BYTES)  # the plan waits for the update
        files.resume()
        await updating
        await scaling
        assert len(stream.open_parts) == 2


@pytest.mark.asyncio
async def test_one_hot_key_is_left_alone_and_explained(streams: Streams) -> None:
    """Behaviour 24: one hot key does not make it split forever."""
    await streams.controller.create("shop/orders", segment_count=1, configuration=BY_EVENTS)
    await drive(streams, "shop/orders", ["hot"] * 90 + KEYS[:6], seconds=60)

    stream = streams.controller.find("shop/orders")
    facts = streams.runner.explain(stream)
    assert stream.epoch == 0
    assert facts["segments"][0]["remark"] == "one key holds 94% of its load; splitting would not help"
    assert facts["segments"][0]["events_per_s"] == pytest.approx(48, abs=1)
    assert json.loads(json.dumps(facts)) == facts


@pytest.mark.asyncio
async def test_a_fixed_stream_is_measured_when_somebody_asks(streams: Streams) -> None:
    await streams.controller.create("shop/orders", segment_count=1, configuration="")
    stream = streams.controller.find("shop/orders")
    assert "events_per_s" not in streams.runner.explain(stream)["segments"][0]
    await drive(streams, "shop/orders", KEYS, seconds=20)
    assert streams.runner.explain(stream)["segments"][0]["events_per_s"] == pytest.approx(32, abs=1)
    assert stream.epoch == 0


@pytest.mark.asyncio
async def test_retention_by_size_cuts_at_an_append(streams: Streams) -> None:
    """Behaviour 25: by size, on the border of an append."""
    await streams.controller.create("a/b", segment_count=1, configuration=retaining(kind="size", max_bytes=1000))
    stream = streams.controller.find("a/b")
    (segment_id,) = stream.segment_ids
    for _ in range(20):
        await streams.append(segment_id, bytes(100))
        streams.clock.move(1.0)
    await streams.runner.retain()

    segment = streams.opened.container.segment(segment_id)
    assert (segment.start_offset, segment.length) == (1100, 2000)
    assert streams.runner.statistics.truncations_total == 1
    assert streams.runner.statistics.truncated_bytes_total == 1100
    facts = streams.runner.explain(stream)
    assert facts["truncations"][0]["reason"] == "size: 2,000 bytes, the maximum is 1,000"

    await streams.runner.retain()
    assert segment.start_offset == 1100
    assert streams.runner.explain(stream)["retention"] == ["900 bytes of at most 1,000", "nothing is to be forgotten"]


@pytest.mark.asyncio
async def test_what_is_idle_grows_old_across_restarts(tmp_path: Path, storage: MemoryStorage) -> None:
    """Behaviour 25: by time: a server that is started again every day does not keep it forever."""
    day_s = 86_400.0
    clock = ManualClock()
    for day in range(7):
        async with streams_in(tmp_path, storage=storage, clock=clock) as streams:
            if day == 0:
                configuration = retaining(kind="time", max_age_s=6 * day_s)
                await streams.controller.create("a/b", segment_count=1, configuration=configuration)
                await streams.append(streams.controller.find("a/b").segment_ids[0], bytes(100))
            await streams.run(0.9 * day_s)
            await streams.runner.retain()
            segment = streams.opened.container.segment(streams.controller.find("a/b").segment_ids[0])
            assert segment.start_offset == (100 if day == 6 else 0)
        clock.move(0.1 * day_s)


@pytest.mark.asyncio
async def test_of_a_deleted_stream_nothing_is_remembered(streams: Streams) -> None:
    await streams.controller.create("a/b", segment_count=1, configuration=retaining(kind="size", max_bytes=1000))
    await streams.append(streams.controller.find("a/b").segment_ids[0], bytes(2000))
    await streams.runner.retain()
    await streams.runner.scale()
    assert [len(state.truncations) for state in streams.runner._policy_states.values()] == [1]
    await streams.controller.seal("a/b")
    await streams.controller.delete("a/b")
    await streams.runner.scale()
    assert not streams.runner._policy_states


@pytest.mark.asyncio
async def test_a_jump_of_the_wall_clock_deletes_nothing(tmp_path: Path, storage: MemoryStorage) -> None:
    """Behaviour 25: by time keeps all that is younger; a forward jump, also across a restart, deletes nothing."""
    clock = ManualClock()
    options = StreamsOptions(retention_interval_s=2.0)
    async with streams_in(tmp_path, storage=storage, clock=clock, options=options) as streams:
        await streams.controller.create("a/b", segment_count=1, configuration=retaining(kind="time", max_age_s=60))
        (segment_id,) = streams.controller.find("a/b").segment_ids
        asleep = clock.sleeper_count
        runner = asyncio.create_task(streams.runner.run())

        async def pass_time(duration_s: float) -> None:
            await until(lambda: clock.sleeper_count > asleep)  # the runner, too
            await clock.advance(duration_s)

        for _ in range(10):
            await streams.append(segment_id, bytes(100))
            await pass_time(2.0)
        clock.jump_wall(365 * 86_400_000_000)
        for _ in range(15):
            await pass_time(2.0)
        segment = streams.opened.container.segment(segment_id)
        assert segment.start_offset == 0
        for _ in range(10):
            await pass_time(2.0)
        await until(lambda: segment.start_offset > 0)
        assert 100 <= segment.start_offset < 900
        runner.cancel()
    young_from = 600  # the seventh append is 58 s old
    clock.jump_wall(365 * 86_400_000_000)
    async with streams_in(tmp_path, storage=storage, clock=clock, options=options) as streams:
        await streams.runner.retain()
        assert streams.opened.container.segment(segment_id).start_offset <= young_from


@pytest.mark.asyncio
async def test_retention_by_consumption_waits_for_the_slowest_cursor(streams: Streams) -> None:
    """Behaviour 25: never past the slowest registered cursor; the explanation names what it holds."""
    await streams.controller.create("a/b", segment_count=1, configuration=retaining(kind="consumption"))
    stream = streams.controller.find("a/b")
    (segment_id,) = stream.segment_ids
    for _ in range(20):
        await streams.append(segment_id, bytes(100))
        streams.clock.move(1.0)
    await streams.runner.retain()
    assert "no cursor is registered" in streams.runner.explain(stream)["retention"][0]

    for name, kind, offset in (("fast", 2, 1500), ("slow", 2, 400), ("mark", 1, 0)):
        await streams.controller.save_cuts("a/b", [m.NamedCut(kind, name, [m.SavedPosition(segment_id, offset, 0)])])
    assert [(c["name"], c["unread_bytes"], c["holds_bytes"]) for c in streams.runner.explain(stream)["cursors"]] == [
        ("slow", 1600, 1100),
        ("fast", 500, 0),
    ]
    await streams.runner.retain()
    segment = streams.opened.container.segment(segment_id)
    assert segment.start_offset == 400

    await streams.controller.forget_cut("a/b", "slow", kind=m.CutKind.CURSOR)
    await streams.runner.retain()
    assert segment.start_offset == 1500


@pytest.mark.asyncio
async def test_a_cursor_that_was_not_set_for_as_long_as_it_holds_is_forgotten(streams: Streams) -> None:
    """Behaviour 59: a consumer that is dead does not hold data forever; one that sets its cursor again is not dead."""
    await streams.controller.create("a/b", segment_count=1, configuration=retaining(kind="consumption"))
    (segment_id,) = streams.controller.find("a/b").segment_ids
    await streams.append(segment_id, bytes(100))
    end = [m.SavedPosition(segment_id, 100, 0)]
    start = [m.SavedPosition(segment_id, 0, 0)]
    await streams.controller.save_cuts(
        "a/b",
        [
            m.NamedCut(2, "dead", start, 7 * DAY_S),
            m.NamedCut(2, "patient", start, 60 * DAY_S),
            m.NamedCut(2, "idle", end, 7 * DAY_S),
            m.NamedCut(2, "billing", end),
            m.NamedCut(1, "mark", start),
        ],
    )
    for names in (["billing", "dead", "idle", "patient"], ["billing", "idle", "patient"]):
        await streams.run(4 * DAY_S)
        await streams.controller.save_cuts("a/b", [m.NamedCut(2, "idle", end, 7 * DAY_S)])
        await streams.runner.retain()
        facts = streams.runner.explain(streams.controller.find("a/b"))["cursors"]
        assert sorted(cursor["name"] for cursor in facts) == names
        assert streams.opened.container.segment(segment_id).start_offset == 0
    streams.clock.jump_wall(100 * DAY_S * 1_000_000)  # nothing is older for it
    await streams.runner.retain()
    await streams.controller.save_cuts("a/b", [m.NamedCut(2, "patient", start, DAY_S)])  # another time, from now on
    await streams.runner.retain()
    assert (m.CutKind.CURSOR, "patient") in streams.controller.find("a/b").cuts
    await streams.run(1.5 * DAY_S)
    await streams.runner.retain()

    assert sorted(streams.controller.find("a/b").cuts) == [(1, "mark"), (2, "billing"), (2, "idle")]
    await streams.runner.retain()
    assert streams.opened.container.segment(segment_id).start_offset == 100


@pytest.mark.asyncio
async def test_a_silent_cursor_ends_on_a_stream_without_retention(streams: Streams) -> None:
    """Within an eighth of its time, also if it was set before this server started to look."""
    await streams.controller.create("a/b", segment_count=1, configuration="")
    (segment_id,) = streams.controller.find("a/b").segment_ids
    start = [m.SavedPosition(segment_id, 0, 0)]
    cuts = [m.NamedCut(2, "dead", start, 7 * DAY_S), m.NamedCut(2, "billing", start), m.NamedCut(1, "mark", start)]
    await streams.controller.save_cuts("a/b", cuts)
    await streams.runner.retain()
    await streams.run(6.9 * DAY_S)
    await streams.runner.retain()
    assert len(streams.controller.find("a/b").cuts) == 3
    await streams.run(0.9 * DAY_S)
    await streams.runner.retain()

    assert sorted(streams.controller.find("a/b").cuts) == [(1, "mark"), (2, "billing")]


@pytest.mark.asyncio
async def test_a_cursor_that_is_set_while_it_is_forgotten_stays(streams: Streams) -> None:
    await streams.controller.create("a/b", segment_count=1, configuration=retaining(kind="consumption"))
    (segment_id,) = streams.controller.find("a/b").segment_ids
    cut = m.NamedCut(2, "dead", [m.SavedPosition(segment_id, 0, 0)], DAY_S)
    await streams.controller.save_cuts("a/b", [cut])
    await streams.run(2 * DAY_S)
    saving = asyncio.ensure_future(streams.controller.save_cuts("a/b", [cut]))
    await asyncio.sleep(0)
    await streams.runner.retain()
    await saving

    assert (m.CutKind.CURSOR, "dead") in streams.controller.find("a/b").cuts


@pytest.mark.asyncio
async def test_cursors_of_the_creation_hold_what_is_written_from_the_start(streams: Streams) -> None:
    """Behaviour 25: others may be registered, and read everything, before their consumers come."""
    await streams.controller.create(
        "a/b", segment_count=1, configuration=retaining(kind="consumption"), cursors=["slow", "slower"]
    )
    (segment_id,) = streams.controller.find("a/b").segment_ids
    for _ in range(20):
        await streams.append(segment_id, bytes(100))
        streams.clock.move(1.0)
    for names, start in ((["fast"], 0), (["fast", "slow"], 0), (["fast", "slow", "slower"], 2000)):
        cuts = [m.NamedCut(2, name, [m.SavedPosition(segment_id, 2000, 0)]) for name in names]
        await streams.controller.save_cuts("a/b", cuts)
        await streams.runner.retain()
        assert streams.opened.container.segment(segment_id).start_offset == start


@pytest.mark.asyncio
async def test_borders_that_only_a_chunk_knows_are_found(streams: Streams) -> None:
    """What was flushed is cut as exactly as what was not."""
    await streams.controller.create("a/b", segment_count=1, configuration=retaining(kind="size", max_bytes=1000))
    (segment_id,) = streams.controller.find("a/b").segment_ids
    for _ in range(20):
        await streams.append(segment_id, bytes(100))
        streams.clock.move(1.0)
    await streams.opened.flusher.flush()
    segment = streams.opened.container.segment(segment_id)
    assert len(segment.index) < 5

    await streams.runner.retain()
    assert segment.start_offset == 1100


@pytest.mark.asyncio
async def test_segments_that_were_replaced_go_when_a_cut_is_after_them(streams: Streams) -> None:
    """Behaviour 26: the head of a stream is the cut at which it was truncated, and cuts there stay valid."""
    await streams.controller.create("a/b", segment_count=2, configuration="")
    stream = streams.controller.find("a/b")
    left, right = stream.segment_ids
    await streams.append(left, bytes(100))
    await streams.append(right, bytes(100))
    everything = [m.KeyRangeRecord(0, KEY_SPACE - 1)]
    await streams.controller.scale("a/b", sealed_ids=[left, right], ranges=everything, cause="test")
    merged = stream.segment_ids[-1]

    await streams.controller.truncate("a/b", [m.SavedPosition(left, 100), m.SavedPosition(right, 50)])
    assert stream.segment_ids == [left, right, merged]
    await streams.controller.truncate("a/b", [m.SavedPosition(left, 100), m.SavedPosition(right, 100)])
    assert stream.segment_ids == [left, right, merged]
    await streams.append(merged, bytes(10))
    await streams.controller.truncate("a/b", [m.SavedPosition(merged, 10)])
    assert stream.segment_ids == [merged]


@pytest.mark.asyncio
async def test_decisions_that_are_refused_are_counted(streams: Streams) -> None:
    await streams.controller.create("a/b", segment_count=1, configuration=BY_EVENTS)
    for _ in range(9):
        (segment_id,) = streams.controller.find("a/b").segment_ids
        await streams.write(segment_id, KEYS)
        streams.clock.move(2.0)
        await streams.runner.scale()
    await streams.write(segment_id, KEYS)
    streams.opened.container.stop()
    streams.clock.move(2.0)
    await streams.runner.scale()
    assert streams.runner.statistics.refusals_total == 1
    assert streams.controller.find("a/b").epoch == 0


@pytest.mark.asyncio
async def test_streams_are_found_by_tag(streams: Streams) -> None:
    for name, tags in (("a/1", ["x"]), ("a/2", ["x", "y"]), ("a/3", [])):
        await streams.controller.create(name, segment_count=1, configuration=json.dumps({"tags": tags}))
    assert await streams.tagged("x") == ["a/1", "a/2"]
    await streams.controller.update("a/1", configuration=json.dumps({"tags": ["y"]}))
    await streams.controller.seal("a/2")
    await streams.controller.delete("a/2")
    assert await streams.tagged("x") == []
    assert await streams.tagged("y") == ["a/1"]
    assert streams.catalog.scaling == streams.catalog.retaining == set()


@pytest.mark.asyncio
async def test_pages_of_a_tag_hold_what_is_stored_and_what_is_not(streams: Streams) -> None:
    tagged = '{"tags": ["x"]}'
    for number in range(20):
        await streams.controller.create(f"a/{number:02d}", segment_count=1, configuration=tagged if number % 2 else "")
    await streams.opened.flusher.checkpoint()
    for number in range(20, 30):
        await streams.controller.create(f"a/{number:02d}", segment_count=1, configuration=tagged if number % 2 else "")
    await streams.controller.update("a/00", configuration=tagged)
    await streams.controller.update("a/01", configuration="")
    await streams.controller.seal("a/03")
    await streams.controller.delete("a/03")
    expected = ["a/00", *(f"a/{number:02d}" for number in range(5, 30, 2))]

    for count_max in (1, 2, 3, 100):
        names: list[str] = []
        more = True
        while more:
            page, more = await streams.catalog.names_with_tag(
                "x", prefix="a/", after=names[-1] if names else "", count_max=count_max
            )
            assert len(page) <= count_max
            names += page
        assert names == expected
    assert await streams.tagged("y") == []


@pytest.mark.asyncio
async def test_streams_at_rest_are_not_looked_at_until_they_are_written_to(streams: Streams) -> None:
    """Behaviour 23: what is done every second must not visit each of a million idle streams."""
    stream, _ = await streams.controller.create("a/b", segment_count=1, configuration=BY_EVENTS)
    for _ in range(400):
        streams.clock.move(1.0)
        await streams.runner.scale()
    assert stream.stream_id not in streams.runner._awake

    await streams.append(stream.segment_ids[0], bytes(10))
    await streams.runner.scale()
    assert stream.stream_id in streams.runner._awake


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Look into the checkpoint with other means, so that nobody else can."""
    with contextlib.closing(sqlite3.connect(folder / "checkpoint.db", isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")


@pytest.mark.asyncio
async def test_a_stream_that_cannot_be_read_now_is_looked_at_later(
    tmp_path: Path, storage: MemoryStorage, clock: ManualClock
) -> None:
    """Behaviour 24: it is not taken for one that was deleted."""
    configuration = json.dumps({"scaling": {"kind": "events", "target_per_s": 10, "min_segments": 4}})
    async with streams_in(tmp_path, storage=storage, clock=clock) as streams:
        stream, _ = await streams.controller.create("a/b", segment_count=1, configuration=configuration)
        await streams.opened.flusher.checkpoint()
    async with streams_in(tmp_path, storage=storage, clock=clock) as streams:
        in_memory = streams.opened.container.state.streams.present
        with held(tmp_path):
            await streams.runner.scale()
        assert not in_memory()
        await streams.runner.scale()
        assert [found.stream_id for found in in_memory()] == [stream.stream_id]
        assert stream.stream_id in streams.runner._awake


@pytest.mark.asyncio
@pytest.mark.parametrize("trouble", ["damaged", "held"])
async def test_the_runner_outlives_a_checkpoint_that_it_cannot_read(
    tmp_path: Path, storage: MemoryStorage, clock: ManualClock, trouble: str
) -> None:
    """Behaviour 41: of damage the container is told, which is opened again from a copy; the rest passes."""
    async with streams_in(tmp_path, storage=storage, clock=clock) as streams:
        await streams.controller.create("a/b", segment_count=1, configuration=BY_EVENTS)
        await streams.opened.flusher.checkpoint()
        if trouble == "damaged":
            with contextlib.closing(sqlite3.connect(tmp_path / "checkpoint.db", isolation_level=None)) as connection:
                connection.execute("UPDATE labels SET name = 'a/c'")
        with held(tmp_path) if trouble == "held" else contextlib.nullcontext():
            runner = asyncio.create_task(streams.runner.run())
            await until(lambda: clock.sleeper_count or runner.done())
            assert not runner.done()
        assert (streams.opened.container.checkpoint_damage is not None) == (trouble == "damaged")
        if trouble == "held":
            loaded_s = clock.monotonic_s()
            async with asyncio.timeout(PATIENCE_S):
                while not streams.runner._policy_states:
                    await clock.advance(1.0)
                    assert not runner.done()
            assert loaded_s < clock.monotonic_s()
        runner.cancel()


@pytest.mark.asyncio
async def test_what_is_seconds_old_is_kept_whatever_the_clocks_do(
    tmp_path: Path, storage: MemoryStorage, clock: ManualClock
) -> None:
    """Behaviour 25: also where a new append follows the jump, and where it came after the last look at the clocks."""
    week = retaining(kind="time", max_age_s=7 * DAY_S)
    await clock.advance(100.0 * DAY_S)
    async with streams_in(tmp_path, storage=storage, clock=clock) as streams:
        await streams.run(30.0 * DAY_S)
        clock.jump_wall(-10 * DAY_S * 1_000_000)
        await streams.controller.create("a/b", segment_count=1, configuration=week)
        segment_id = streams.controller.find("a/b").segment_ids[0]
        await streams.append(segment_id, bytes(100))
        await streams.runner.retain()
        assert streams.opened.container.segment(segment_id).start_offset == 0
    clock.jump_wall(365 * DAY_S * 1_000_000)
    async with streams_in(tmp_path, storage=storage, clock=clock) as streams:
        for _ in range(2):
            await streams.append(segment_id, bytes(100))
            await streams.run(10.0)
            await streams.runner.retain()
            assert streams.opened.container.segment(segment_id).start_offset == 0
        await streams.run(8.0 * DAY_S)
        await streams.runner.retain()
        assert streams.opened.container.segment(segment_id).start_offset == 300
