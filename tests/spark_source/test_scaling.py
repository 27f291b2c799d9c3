"""The readers of a stream that is split and merged; called as Spark calls them, without a JVM."""

import json
import random
from collections.abc import Iterable
from contextlib import closing

import pytest

from millrace.spark_source.errors import CheckpointError, OptionError
from millrace.spark_source.link import Link
from millrace.spark_source.options import parse_options
from millrace.spark_source.planning import Planner, run_plan
from millrace.spark_source.rows import SCHEMA
from millrace.spark_source.source import MillraceDataSource
from tests.spark_source.conftest import Drivers, Offset, Row, Shop, position, rows_of_events, rows_of_tasks
from tests.spark_source.epochs import batch_rows, loaded, scaled, segments_of


def check_keys(rows: Iterable[Row]) -> None:
    """Check that the events of each key come in the order in which they were written."""
    values: dict[str | None, list[bytes]] = {}
    for row in rows:
        values.setdefault(row[1], []).append(row[0])
    assert all(of_key == sorted(of_key) for of_key in values.values())


def check_one_segment_per_key(rows: Iterable[Row]) -> None:
    segments: dict[str | None, int] = {}
    for row in rows:
        assert segments.setdefault(row[1], row[3]) == row[3]


# --- batches ---


def test_positions_ascend_in_the_order_of_each_key(shop: Shop) -> None:
    """What a shuffle has mixed up can be sorted: a segment that replaces others has a higher id."""
    scaled(shop)
    rows = batch_rows(shop)
    random.Random(1).shuffle(rows)

    check_keys(sorted(rows, key=position))


def test_a_batch_reads_all_epochs_in_the_order_of_each_key(shop: Shop) -> None:
    """Behaviour 54."""
    scaled(shop)
    rows = batch_rows(shop, partitionBytes="1k")

    assert len(rows) == 240
    assert sorted(rows) == sorted(rows_of_events(shop.plain()))
    check_keys(rows)


def test_tasks_are_of_the_wanted_size_whatever_the_epochs(shop: Shop) -> None:
    """Behaviour 72: one of each open segment. What is small is packed across earlier epochs, what is large divided."""
    scaled(shop)
    assert [len(partition.ranges) for partition in loaded(shop)[1]] == [5, 1, 1]  # type: ignore[attr-defined]
    assert len(loaded(shop, partitionBytes="64m")[1]) == 1
    shop.write(60, events=10, size=1000, keys=1)

    assert len(loaded(shop, partitionBytes="200k")[1]) >= 4
    check_keys(batch_rows(shop, partitionBytes="200k"))


@pytest.mark.parametrize("count", [0, 1, 59, 60, 61, 100, 150, 239, 240])
def test_slices_go_from_any_epoch_to_any_other(shop: Shop, count: int) -> None:
    """Behaviour 54: by cuts and by time."""
    scaled(shop)
    events = shop.plain()
    cut = shop.client.stream_cut(shop.stream, after_events=count)
    before, after = batch_rows(shop, endCut=cut), batch_rows(shop, startCut=cut)

    assert len(before) == count
    assert sorted(before) == sorted(rows_of_events(shop.plain(end=cut)))
    assert sorted(before + after) == sorted(rows_of_events(events))
    moment = sorted(event.timestamp_us or 0 for event in events)[min(count, 239)]
    assert sorted(batch_rows(shop, startCut=moment)) == sorted(
        rows_of_events([event for event in events if (event.timestamp_us or 0) >= moment])
    )


def test_a_key_is_read_from_the_segments_that_may_hold_it(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 72: by a batch and by a query, as an option and in a slice."""
    scaled(shop)
    key = next(row[1] for row in batch_rows(shop) if row[1] is not None)
    expected = sorted(row for row in batch_rows(shop) if row[1] == key)
    held = {segment.segment_id for segment in shop.client.stream_info(shop.stream).segments if segment.holds(key)}

    reader, partitions = loaded(shop, key=key)
    assert sorted(rows_of_tasks(reader, partitions)) == expected
    assert {part.segment_id for each in partitions for part in each.ranges} <= held  # type: ignore[attr-defined]
    assert sorted(row for _, _, rows in drivers(key=key, maxEventsPerTrigger=50).batches() for row in rows) == expected
    of_slice = MillraceDataSource({"address": shop.address, "slice": f"{shop.stream}@head..tail#{key}"})
    of_slice.schema()
    batch = of_slice.reader(SCHEMA)
    assert sorted(rows_of_tasks(batch, batch.partitions())) == expected


# --- micro-batches ---


@pytest.mark.parametrize("limits", [{}, {"maxEventsPerTrigger": 37}, {"maxBytesPerTrigger": "2k"}])
def test_a_query_reads_a_scaled_stream_key_by_key(shop: Shop, drivers: Drivers, limits: dict[str, int | str]) -> None:
    """Behaviours 56 and 57."""
    scaled(shop)
    batches = list(drivers(partitionBytes="1k", **limits).batches())
    rows = [row for _, _, more in batches for row in more]

    assert sorted(rows) == sorted(rows_of_events(shop.plain()))
    check_keys(rows)
    for _, _, more in batches:
        check_one_segment_per_key(more)
        assert len(more) <= int(limits.get("maxEventsPerTrigger", 240))
    assert len(batches) == 4 or limits
    assert batches[-1][1]["cut"] == str(shop.client.stream_cut(shop.stream))


def test_one_task_has_all_events_of_a_key_where_a_batch_is_no_larger_than_a_task(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 57: in order to the task, so that a sink which writes row by row keeps the order of each key."""
    scaled(shop)
    driver = drivers(maxBytesPerTrigger="2k", partitionBytes="2k")
    several = 0
    for start, end, _ in driver.batches():
        tasks: dict[str | None, int] = {}
        partitions = driver.reader.partitions(start, end)
        several += len(partitions) > 1
        for number, partition in enumerate(partitions):
            rows = rows_of_tasks(driver.reader, [partition])
            check_keys(rows)
            assert all(tasks.setdefault(row[1], number) == number for row in rows)
    assert several


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_splits_and_merges_while_a_query_runs(shop: Shop, drivers: Drivers, seed: int) -> None:
    """Behaviours 55, 56 and 57: each event once, in order, also where the query is started again now and then."""
    dice = random.Random(seed)
    shop.create(2)
    options: dict[str, object] = {"maxEventsPerTrigger": 40, "partitionBytes": "1k"}
    driver = drivers(**options)
    offset = driver.start()
    rows: list[Row] = []
    for _ in range(25):
        act = dice.randrange(6)
        if act == 0:
            shop.scale(*sorted(dice.sample([0.2, 0.3, 0.4, 0.6, 0.8], dice.randint(0, 3))))
        elif act == 1:
            driver = drivers(**options)
        elif act < 4:
            shop.write(dice.randint(1, 6), keys=5)
        else:
            end = driver.end(offset)
            more = driver.read(offset, end)
            assert driver.read(offset, end) == more
            check_one_segment_per_key(more)
            assert len(more) <= 40
            rows += more
            offset = end
    rows += [row for _, _, more in driver.batches(offset) for row in more]

    assert len({position(row) for row in rows}) == len(rows) == shop.written
    check_keys(rows)


def test_a_checkpoint_of_before_the_first_split_resumes(shop: Shop, drivers: Drivers) -> None:
    """Behaviours 55 and 57. Offsets of a stream that was never scaled are what they always were."""
    shop.create()
    shop.write(10)
    (only,) = shop.client.stream_info(shop.stream).segments
    driver = drivers(maxEventsPerTrigger=65)
    start = driver.start()
    middle = driver.end(start)
    for offset in (start, middle):
        del offset["cursor"]  # such checkpoints are older
    assert start == {"cut": f"{shop.stream}@{only.segment_id}:0.0", "events": {str(only.segment_id): 0}, "lost": 0}
    assert list(middle) == ["cut", "events", "lost"]
    shop.write(3)
    shop.scale(0.5)
    shop.write(10)

    batches = list(drivers().batches(middle))
    assert [len(rows) for _, _, rows in batches] == [65, 100]
    assert {row[3] for row in batches[0][2]} == {only.segment_id}
    assert only.segment_id not in segments_of(batches[0][1])
    assert batches[0][1]["events"] == {str(segment_id): 0 for segment_id in segments_of(batches[0][1])}
    again = drivers(maxEventsPerTrigger=1)
    assert again.read(middle, batches[0][1]) == batches[0][2]


def test_a_segment_with_nothing_left_leaves_the_offset(shop: Shop, drivers: Drivers) -> None:
    """By a batch without events; so a truncation before it takes nothing from the query."""
    shop.create()
    shop.write(2)
    driver = drivers()
    read = driver.end(driver.start())
    shop.scale(0.5)
    left = driver.end(read)

    assert set(segments_of(left)).isdisjoint(segments_of(read))
    assert driver.read(read, left) == []
    assert driver.end(left) == left
    shop.scale()
    shop.scale(0.3)  # two at once: neither of them ever held anything
    shop.write(3)
    end = driver.end(left)
    assert len(driver.read(left, end)) == 30
    assert end["cut"] == str(shop.client.stream_cut(shop.stream))
    shop.client.truncate_stream(shop.stream, shop.client.stream_cut(shop.stream))
    assert driver.end(end) == end


@pytest.mark.slow
def test_a_merge_waits_for_all_that_it_merges(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 57."""
    shop.create(2)
    shop.write(20)
    before = segments_of(drivers().start())
    shop.scale()
    shop.write(20)
    batches = list(drivers(maxEventsPerTrigger=30).batches())
    merged = [{row[3] for row in rows}.isdisjoint(before) for _, _, rows in batches]

    assert merged == sorted(merged)
    assert sum(len(rows) for (_, _, rows), after in zip(batches, merged, strict=True) if not after) == 200
    assert [len(rows) for _, _, rows in batches].count(30) >= len(batches) - 2


def test_available_now_ends_at_its_tail_wherever_that_is_by_then(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 56."""
    shop.create()
    shop.write(10)
    driver = drivers(maxEventsPerTrigger=30)
    driver.reader.prepareForTriggerAvailableNow()
    rows: list[Row] = []
    for borders, (_, _, more) in zip(((0.5,), (0.2, 0.6), (), (0.5,)), driver.batches(), strict=False):
        rows += more
        shop.write(2)
        shop.scale(*borders)
    assert len(rows) == 100

    scaled_since = drivers()
    scaled_since.reader.prepareForTriggerAvailableNow()
    assert sum(len(more) for _, _, more in scaled_since.batches()) == shop.written


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 60, 100, 150, 240])
def test_an_end_cut_in_any_epoch_is_never_passed(shop: Shop, drivers: Drivers, count: int) -> None:
    """Behaviour 56."""
    scaled(shop)
    cut = shop.client.stream_cut(shop.stream, after_events=count)
    driver = drivers(endCut=str(cut), maxEventsPerTrigger=17)
    rows = [row for _, _, more in driver.batches() for row in more]

    assert sorted(rows) == sorted(rows_of_events(shop.plain(end=cut)))


def test_an_end_in_time_moves_on_across_epochs_until_it_is_there(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 56."""

    def write(*moments: int) -> None:
        with shop.client.writer(shop.stream) as writer:
            for moment in moments:
                writer.write_many([b"%d" % moment], timestamps_us=moment, key=f"key-{moment % 5}").result()

    shop.create()
    write(100, 200)
    driver = drivers(endCut="300")
    read: list[bytes] = []
    offset = driver.start()

    def catch_up() -> Offset:
        reached = offset
        for _, end, rows in driver.batches(offset):
            read.extend(row[0] for row in rows)
            reached = end
        return reached

    for borders, moments in (((0.5,), (250, 251)), ((), (252, 290)), ((0.4,), (299, 300, 301, 302, 303, 304))):
        offset = catch_up()
        shop.scale(*borders)
        write(*moments)
    offset = catch_up()
    write(305)

    assert sorted(read) == [b"100", b"200", b"250", b"251", b"252", b"290", b"299"]
    assert driver.end(offset) == offset


def test_lag_counts_what_is_left_of_all_epochs(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 59."""
    scaled(shop)
    driver = drivers(maxEventsPerTrigger=45)
    offset = driver.end(driver.start())
    for left in (195, 180, 135, 120):
        report = driver.reader.reportLatestOffset()
        assert report is not None
        assert report["cut"] == str(shop.client.stream_cut(shop.stream))
        assert report["lag"]["events"] == left
        assert report["lag"]["bytes"] > left * 10
        assert 0 < report["lag"]["seconds"] < 600
        offset = driver.end(offset)


def test_spark_before_4_2_goes_to_the_tail_first(shop: Shop, drivers: Drivers) -> None:
    """It gives no start; so its first batch spans epochs, in the order of its partitions."""
    scaled(shop)
    driver = drivers(partitionBytes="1k")
    start = driver.start()
    restarted = drivers(partitionBytes="1k")
    end = restarted.reader.latestOffset()
    rows = restarted.read(start, end)

    assert sorted(rows) == sorted(rows_of_events(shop.plain()))
    check_keys(rows)


# --- offsets that do not fit ---


def test_an_offset_that_is_no_cut_of_the_stream_is_refused(shop: Shop, drivers: Drivers) -> None:
    scaled(shop)
    driver = drivers()
    offset = driver.start()
    end = driver.end(offset)
    stranger = json.loads(json.dumps(offset).replace(str(segments_of(offset)[0]), "999999"))

    with pytest.raises(CheckpointError, match="never had; was the stream deleted and made again"):
        driver.end(stranger)
    with pytest.raises(CheckpointError, match="never had"):
        driver.reader.partitions(offset, stranger)
    with pytest.raises(CheckpointError, match="version 2, and this Millrace knows version 1"):
        driver.end({**end, "version": 2})
    with pytest.raises(OptionError, match=r'option "startCut": .*never had'):
        drivers(startCut=stranger["cut"]).start()


# --- what planning costs ---


def test_planning_asks_for_the_stream_and_nothing_of_its_segments(shop: Shop) -> None:
    """Without limits and truncations, one answer about the stream is enough for a batch over any number of segments."""
    scaled(shop)
    options = parse_options(shop.options())

    async def plan(planner: Planner) -> int:
        snapshots = await planner.fetch()
        (snapshot,) = snapshots.values()
        start = {shop.stream: await planner.of(shop.stream).counted("startCut", snapshot.head, snapshot)}
        tail = {shop.stream: snapshot.tail}
        reached = await planner.advance(start, tail, snapshots, max_events=1000, max_bytes=1 << 20, turn=0)
        assert reached != start
        assert await planner.partitions({shop.stream: snapshot.head}, tail, snapshots, is_batch=False)
        return planner.client.statistics().reads.connects

    with closing(Link(options)) as link:
        assert run_plan(plan, link=link, options=options) == 0
