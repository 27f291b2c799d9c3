"""The stream reader, called as Spark calls it; no JVM is needed. `test_query` runs whole queries."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import millrace
from millrace.client.errors import StreamNotFoundError
from millrace.spark_source.errors import CheckpointError, DataLossError, OptionError
from millrace.spark_source.options import parse_options
from millrace.spark_source.positions import StreamOffset
from millrace.spark_source.rows import SCHEMA
from millrace.spark_source.source import MillraceDataSource
from millrace.spark_source.stream import MillraceStreamReader
from tests.spark_source.conftest import Drivers, Offset, Row, Shop, needs_limits, position, rows_of_events


def bytes_between(start: Offset, end: Offset) -> int:
    begin, stop = StreamOffset.from_json(start), StreamOffset.from_json(end)
    return sum(mark.offset - begin.marks[segment_id].offset for segment_id, mark in stop.marks.items())


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 7, 100, 333, 10_000])
def test_a_batch_holds_exactly_the_events_allowed(shop: Shop, drivers: Drivers, limit: int) -> None:
    """Behaviour 56, and 55: together the batches are the stream."""
    shop.create(3)
    shop.write(20, events=10 if limit > 1 else 1)
    batches = [rows for _, _, rows in drivers(maxEventsPerTrigger=limit).batches()]

    assert [len(rows) for rows in batches[:-1]] == [limit] * (len(batches) - 1)
    assert 0 < len(batches[-1]) <= limit
    assert sorted(position(row) for rows in batches for row in rows) == sorted(
        position(row) for row in rows_of_events(shop.plain())
    )


def test_order_per_key_holds_within_and_across_batches(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 57, for a fixed number of segments."""
    shop.create(4)
    shop.write(40, events=5, keys=9)
    values: dict[str | None, list[bytes]] = {}
    for _, _, rows in drivers(maxEventsPerTrigger=37, partitionBytes="1k").batches():
        for row in rows:
            values.setdefault(row[1], []).append(row[0])

    assert len(values) == 9
    assert all(of_key == sorted(of_key) for of_key in values.values())


def test_a_batch_passes_its_bytes_only_for_a_single_block(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 56."""
    shop.create(3)
    chance = random.Random(1)
    for _ in range(40):
        shop.write(1, events=chance.choice([1, 5, 40]), size=chance.choice([10, 100, 1000]), keys=0)
    limit = 20_000
    gathered: list[Row] = []
    for start, end, rows in drivers(maxBytesPerTrigger=limit).batches():
        blocks = {row[3:5] for row in rows}
        assert bytes_between(start, end) <= limit or len(blocks) == 1
        assert all(mark.event_index == 0 for mark in StreamOffset.from_json(end).marks.values())
        gathered += rows

    assert sorted(map(position, gathered)) == sorted(map(position, rows_of_events(shop.plain())))


def test_both_limits_hold_together(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 56: Spark is told one of them, and both are kept."""
    shop.create(2)
    shop.write(10, events=100, size=10)
    shop.write(10, events=3, size=2000)
    batches = list(drivers(maxEventsPerTrigger=150, maxBytesPerTrigger="10k").batches())

    assert all(len(rows) <= 150 and bytes_between(start, end) <= 10 << 10 for start, end, rows in batches)
    assert sum(len(rows) for _, _, rows in batches) == shop.written


@pytest.mark.slow
def test_no_segment_starves(shop: Shop, drivers: Drivers) -> None:
    """A block that its segment's share of the limit never reaches is read all the same, when its turn comes."""
    shop.create(8)
    shop.write(1, events=10, size=1000, keys=1)
    shop.write(400, events=5, size=100, keys=50)
    small = {row[3:5] for row in rows_of_events(shop.plain()) if len(row[0]) == 100}
    seen = 0
    for _, _, rows in drivers(maxBytesPerTrigger="12k").batches():
        seen += 1
        if any(row[3:5] not in small for row in rows):
            break
    driver = drivers(maxEventsPerTrigger=1)
    segments = [rows[0][3] for (_, _, rows), _ in zip(driver.batches(), range(16), strict=False)]

    assert seen <= 8
    assert len(set(segments)) == len({row[3] for row in rows_of_events(shop.plain())})


@needs_limits
def test_what_spark_asks_for_wins(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 56: `Trigger.Once` asks for everything, and a lower limit than ours holds."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

    shop.create()
    shop.write(10)
    driver = drivers(maxEventsPerTrigger=30)
    start = driver.start()

    assert driver.reader.getDefaultReadLimit() == ReadMaxRows(30)
    assert drivers(maxBytesPerTrigger=30).reader.getDefaultReadLimit() == ReadMaxBytes(30)
    assert drivers().reader.getDefaultReadLimit() == ReadAllAvailable()
    assert len(driver.read(start, driver.end(start))) == 30
    assert len(driver.read(start, driver.end(start, ReadMaxRows(8)))) == 8
    assert len(driver.read(start, driver.end(start, ReadAllAvailable()))) == 100


@pytest.mark.slow
def test_the_same_offsets_are_the_same_events(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 55: a batch that is run again, by another process too."""
    shop.create(2)
    shop.write(20)
    ran = list(drivers(maxEventsPerTrigger=33).batches())
    shop.write(20)

    again = drivers(maxEventsPerTrigger=5)
    assert [again.read(start, end) for start, end, _ in ran] == [rows for _, _, rows in ran]
    after = [row for _, _, rows in again.batches(ran[-1][1]) for row in rows]
    assert len(after) == 200


def test_available_now_ends_at_the_tail_of_its_start(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 56."""
    shop.create(2)
    shop.write(10)
    driver = drivers(maxEventsPerTrigger=30)
    driver.reader.prepareForTriggerAvailableNow()
    rows: list[Row] = []
    for _, _, more in driver.batches():
        rows += more
        shop.write(1)

    assert len(rows) == 100


def test_a_query_starts_at_a_place_that_the_server_keeps(shop: Shop, drivers: Drivers) -> None:
    """The same words as everywhere; one that is not there is named, with those which are."""
    shop.create(2)
    shop.write(10)
    cut = shop.client.stream_cut(shop.stream, after_events=30)
    shop.client.bookmarks(shop.stream).save("thirty", cut)
    shop.client.cursors(shop.stream).set("billing", shop.client.stream_cut(shop.stream, after_events=80))

    assert drivers(startCut="bookmark:thirty").start()["cut"] == str(cut)
    rows = [
        row for _, _, more in drivers(startCut="bookmark:thirty", endCut="cursor:billing").batches() for row in more
    ]
    assert len(rows) == 50
    assert len([row for _, _, more in drivers(startCut="15m ago").batches() for row in more]) == 100
    with pytest.raises(OptionError, match=f"\"startCut\": {shop.stream} has no bookmark 'billing'; it has thirty"):
        drivers(startCut="bookmark:billing").start()


@pytest.mark.parametrize("start", ["head", "tail", "cut", "time"])
def test_a_query_starts_where_it_is_told(shop: Shop, drivers: Drivers, start: str) -> None:
    """Behaviour 54."""
    shop.create(2)
    shop.write(10, keys=3)
    events = shop.plain()
    cut = millrace.StreamCut.of(shop.stream, _middle(shop))
    moment = sorted(event.timestamp_us or 0 for event in events)[50]
    text = {"head": "head", "tail": "tail", "cut": str(cut), "time": str(moment)}[start]
    wanted = {
        "head": events,
        "tail": [],
        "cut": shop.plain(start=cut),
        "time": [event for event in events if (event.timestamp_us or 0) >= moment],
    }[start]
    driver = drivers(startCut=text)
    first = driver.start()
    shop.write(2)
    rows = [row for _, _, more in driver.batches(first) for row in more]

    assert len(rows) == len(wanted) + 20
    assert set(rows_of_events(wanted)) <= set(rows)


def test_a_start_after_the_end_is_refused(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 60: where a batch or a query is loaded; a query that began at the tail may be resumed after its end."""
    shop.create(2)
    shop.write(10)
    first, second = (shop.client.stream_cut(shop.stream, after_events=count) for count in (30, 60))
    with pytest.raises(OptionError, match=r"startCut.*is after endCut") as caught:
        MillraceDataSource(shop.options(startCut=second, endCut=first)).schema()
    assert str(first) in str(caught.value)
    assert str(second) in str(caught.value)
    with pytest.raises(OptionError, match=r"startCut.*is after endCut"):
        drivers(startCut="tail", endCut=first).start()
    from_tail = MillraceDataSource(shop.options(startCut="tail", endCut=first))
    with pytest.raises(OptionError, match=r"startCut.*is after endCut"):
        from_tail.reader(from_tail.schema()).partitions()
    assert from_tail.schema()


def test_an_end_cut_is_never_passed(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 56: an end cut ends the batches."""
    shop.create(2)
    shop.write(10, keys=3)
    cut = millrace.StreamCut.of(shop.stream, _middle(shop))
    driver = drivers(endCut=str(cut), maxEventsPerTrigger=7)
    rows = [row for _, _, more in driver.batches() for row in more]
    shop.write(5)

    assert sorted(rows) == sorted(rows_of_events(shop.plain(end=cut)))


def test_an_end_in_time_waits_for_events_of_that_time(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 56: what is written before the moment is read, whenever that is."""
    shop.create()
    with shop.client.writer(shop.stream) as writer:
        for moment in (100, 200):
            writer.write_many([b"%d" % moment], timestamps_us=moment).result()
    driver = drivers(endCut="300")
    first = driver.start()
    middle = driver.end(first)
    with shop.client.writer(shop.stream) as writer:
        for moment in (250, 299, 300, 301):
            writer.write_many([b"%d" % moment], timestamps_us=moment).result()
    last = driver.end(middle)

    assert [row[0] for row in driver.read(first, middle)] == [b"100", b"200"]
    assert [row[0] for row in driver.read(middle, last)] == [b"250", b"299"]
    assert driver.end(last) == last


def test_lag_is_reported_beside_the_tail(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 59."""
    shop.create(2)
    shop.write(10)
    driver = drivers(maxEventsPerTrigger=30)
    assert driver.reader.reportLatestOffset() is None
    start = driver.start()
    end = driver.end(start)
    report = driver.reader.reportLatestOffset()
    assert report is not None
    assert report["cut"] == str(shop.client.stream_cut(shop.stream))
    assert report["lag"]["events"] == 70
    assert report["lag"]["bytes"] > 70 * 10
    assert 0 < report["lag"]["seconds"] < 600

    driver.end(driver.end(driver.end(end)))
    caught_up = driver.reader.reportLatestOffset()
    assert caught_up is not None
    assert caught_up["lag"] == {"events": 0, "bytes": 0, "seconds": 0.0}


def test_a_truncation_before_a_query_is_named(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 58."""
    shop.create()
    shop.write(20)
    driver = drivers(maxEventsPerTrigger=15)
    middle = driver.end(driver.start())
    (segment,) = StreamOffset.from_json(middle).marks
    border = sorted({event.offset for event in shop.plain()})[6]
    shop.client.truncate_stream(shop.stream, millrace.StreamCut.of(shop.stream, {segment: (border, 0)}))

    with pytest.raises(DataLossError, match=rf"segment {segment} from \d+\.5 to {border} \(45 events\)") as caught:
        driver.end(middle)
    assert caught.value.missing[0].events == 45
    with pytest.raises(DataLossError, match="failOnDataLoss"):
        driver.reader.partitions(middle, middle)


def test_a_query_that_may_lose_events_continues_and_counts_them(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 58."""
    shop.create()
    shop.write(20)
    driver = drivers(maxEventsPerTrigger=15, failOnDataLoss="false")
    middle = driver.end(driver.start())
    (segment,) = StreamOffset.from_json(middle).marks
    borders = sorted({event.offset for event in shop.plain()})
    shop.client.truncate_stream(shop.stream, millrace.StreamCut.of(shop.stream, {segment: (borders[6], 0)}))
    end = driver.end(middle)
    rows = driver.read(middle, end)

    assert end["lost"] == 45
    assert [int(row[0][:9]) for row in rows] == list(range(60, 75))

    # Truncated between the plan and the read: what is left of the batch is read, and the next offset counts the rest.
    last = driver.end(end)
    shop.client.truncate_stream(shop.stream, millrace.StreamCut.of(shop.stream, {segment: (borders[8], 0)}))
    assert [int(row[0][:9]) for row in driver.read(end, last)] == list(range(80, 90))
    assert driver.end(last)["lost"] == 45 + 5


def test_a_truncation_under_a_task_is_named_or_skipped(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 58."""
    shop.create()
    shop.write(20)
    strict, lenient = drivers(), drivers(failOnDataLoss="false")
    start = strict.start()
    end = strict.end(start)
    (partition,) = strict.reader.partitions(start, end)
    (segment,) = StreamOffset.from_json(end).marks
    border = sorted({event.offset for event in shop.plain()})[6]
    shop.client.truncate_stream(shop.stream, millrace.StreamCut.of(shop.stream, {segment: (border, 0)}))

    with pytest.raises(DataLossError, match=rf"segment {segment} from 0\.0 to {border}"):
        list(strict.reader.read(partition))
    assert sum(len(batch) for batch in lenient.reader.read(partition)) == 140


def test_what_a_task_has_read_is_not_lost(shop: Shop, drivers: Drivers) -> None:
    shop.create()
    shop.write(30, events=5000, size=200)  # more than is fetched ahead
    driver = drivers()
    start = driver.start()
    (partition,) = driver.reader.partitions(start, driver.end(start))
    cut = shop.client.stream_cut(shop.stream, after_events=125_000)
    reading = driver.reader.read(partition)
    batches = [next(reading)]
    shop.client.truncate_stream(shop.stream, cut)

    with pytest.raises(DataLossError) as caught:
        batches.extend(reading)
    (gap,) = caught.value.missing
    assert (gap.start_offset, gap.start_index) == (batches[-1].column("offset")[-1].as_py(), 5000)
    assert cut.places == {gap.segment_id: (gap.end_offset, 0)}


def test_a_stream_that_is_deleted_under_a_query_is_no_wrong_option(shop: Shop, drivers: Drivers) -> None:
    shop.create()
    driver = drivers()
    start = driver.start()
    shop.client.seal_stream(shop.stream)
    shop.client.delete_stream(shop.stream)

    with pytest.raises(StreamNotFoundError):
        driver.end(start)
    with pytest.raises(OptionError, match='option "stream": there is no stream'):
        drivers().start()


def test_a_checkpoint_of_another_stream_is_refused(shop: Shop, drivers: Drivers) -> None:
    shop.create()
    shop.write(1)
    driver = drivers()
    offset = driver.start()

    with pytest.raises(CheckpointError, match="deleted and made again"):
        driver.end({**offset, "cut": f"{shop.stream}@999:0.0", "events": {"999": 0}})
    with pytest.raises(CheckpointError, match="beyond the end"):
        driver.end({**offset, "cut": offset["cut"].replace(":0.0", ":800000.0")})
    with pytest.raises(CheckpointError, match="no offset"):
        driver.end({"partition": 0})


def test_a_start_cut_that_no_event_has_is_refused(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 60."""
    shop.create()
    shop.write(1, events=3)
    (segment,) = shop.client.stream_info(shop.stream).segments

    with pytest.raises(OptionError, match=r'option "startCut": .* has 3 events'):
        drivers(startCut=f"{shop.stream}@{segment.segment_id}:0.4").start()
    with pytest.raises(OptionError, match=r'option "startCut": .* beyond the end'):
        drivers(startCut=f"{shop.stream}@{segment.segment_id}:80000.0").start()


def test_a_connection_that_was_silent_for_long_is_made_again(shop: Shop, drivers: Drivers) -> None:
    shop.create()
    driver = drivers()
    start = driver.start()
    shop.write(1)
    driver.reader.stop()

    assert len(driver.read(start, driver.end(start))) == 10


def test_spark_before_4_2_gives_neither_start_nor_limit(shop: Shop, drivers: Drivers) -> None:
    shop.create()
    shop.write(10)
    driver = drivers(maxEventsPerTrigger=30)
    offsets = [driver.start(), *(driver.reader.latestOffset() for _ in range(5))]
    assert [sum(offset["events"].values()) for offset in offsets] == [0, 30, 60, 90, 100, 100]

    tail = str(shop.client.stream_cut(shop.stream))
    restarted = drivers(maxEventsPerTrigger=30)
    assert restarted.reader.latestOffset()["cut"] == tail

    after_a_commit = drivers(maxEventsPerTrigger=30)
    assert after_a_commit.reader.partitions(offsets[1], offsets[1]) == []
    assert after_a_commit.reader.latestOffset()["cut"] == tail

    after_a_kill = drivers(maxEventsPerTrigger=30)
    assert len(after_a_kill.read(offsets[1], offsets[2])) == 30
    assert after_a_kill.reader.latestOffset() == offsets[3]


def test_spark_before_4_2_asks_for_the_first_end_before_the_start(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 55: the next batch continues at that end, and repeats nothing, whatever the limit."""
    shop.create(2)
    shop.write(10)
    driver = drivers(maxEventsPerTrigger=30)
    first = driver.reader.latestOffset()
    assert len(driver.read(driver.start(), first)) == 100
    assert driver.reader.latestOffset() == first

    shop.write(4)
    second = driver.reader.latestOffset()

    assert len(driver.read(first, second)) == 30


def _middle(shop: Shop) -> dict[int, tuple[int, int]]:
    """Return a place in the middle of each segment, inside a block."""
    segments: dict[int, list[tuple[int, int]]] = {
        segment.segment_id: [(segment.length, 0)] for segment in shop.client.stream_info(shop.stream).segments
    }
    for event in shop.plain():
        segments[event.segment].insert(-1, (event.offset, event.index))
    return {
        segment_id: places[len(places) // 2 - 3 if len(places) > 6 else 0] for segment_id, places in segments.items()
    }


@pytest.mark.slow
def test_a_query_plans_and_reads_on_when_the_server_returns(tmp_path: Path) -> None:
    """Behaviour 89: after an outage longer than a request may take, one of another client has failed."""
    with millrace.testing.server() as running, millrace.blocking.connect(running.address) as client:
        shop = Shop(client, running, "tests/outage", tmp_path)
        shop.create(2)
        shop.write(5)
        query = MillraceStreamReader(parse_options(shop.options()), SCHEMA)
        end = query.latestOffset(query.initialOffset())
        partitions = query.partitions(query.initialOffset(), end)
        running.kill()
        with ThreadPoolExecutor() as pool:
            planned = pool.submit(query.latestOffset, end)
            tasks = [pool.submit(lambda each: list(query.read(each)), each) for each in partitions]
            try:
                with pytest.raises((millrace.ConnectionLostError, millrace.RequestTimeoutError)):
                    shop.client.stream_info(shop.stream)
            finally:
                running.start()
            assert planned.result() == end
            assert sum(batch.num_rows for task in tasks for batch in task.result()) == 50
        query.stop()


@pytest.mark.slow
def test_a_query_with_a_time_limit_gives_up_in_an_outage(tmp_path: Path) -> None:
    """Also where none was given: what prepares a query does not wait without end."""
    with millrace.testing.server() as running, millrace.blocking.connect(running.address) as client:
        shop = Shop(client, running, "tests/limit", tmp_path)
        shop.create()
        # It holds for the answers of a server that runs, too: enough for one on a busy machine.
        query = MillraceStreamReader(parse_options(shop.options(outageTimeout="3s")), SCHEMA)
        start = query.initialOffset()
        running.kill()
        # Which of them depends on whether the time is up within an attempt or between two.
        with pytest.raises((millrace.ConnectionLostError, millrace.RequestTimeoutError)):
            query.latestOffset(start)
        query.stop()
        with pytest.raises(OptionError, match=r"no server could be reached|no answer from"):
            MillraceStreamReader(parse_options(shop.options()), SCHEMA).latestOffset(start)
