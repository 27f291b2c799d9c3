"""What the readers say and do about events that were truncated away; called as Spark calls them, without a JVM."""

from contextlib import closing

import pytest

import millrace
from millrace.spark_source.batch import MillraceBatchReader
from millrace.spark_source.errors import DataLossError, OptionError
from millrace.spark_source.link import Link
from millrace.spark_source.options import parse_options
from millrace.spark_source.planning import Planner, run_plan
from millrace.spark_source.positions import RangePartition
from millrace.spark_source.rows import SCHEMA
from tests.spark_source.conftest import Drivers, Shop, rows_of_events, rows_of_tasks
from tests.spark_source.epochs import batch_rows, loaded, scaled, segments_of


def test_a_batch_whose_start_is_deleted_names_what_is_missing(shop: Shop) -> None:
    """Behaviour 58."""
    scaled(shop)
    head = shop.client.stream_info(shop.stream).head()
    (first,) = head.places
    cut = shop.client.stream_cut(shop.stream, after_events=150)
    shop.client.truncate_stream(shop.stream, cut)

    with pytest.raises(DataLossError, match=rf"segment {first} from 0\.0 to its end.*failOnDataLoss"):
        batch_rows(shop, startCut=head)
    left = batch_rows(shop, startCut=head, failOnDataLoss="false")
    assert sorted(left) == sorted(rows_of_events(shop.plain()))
    assert sorted(left) == sorted(batch_rows(shop))
    with pytest.raises(OptionError, match=r'option "startCut": .*every key exactly once'):
        batch_rows(
            shop, startCut=millrace.StreamCut.of(shop.stream, dict(list(cut.places.items())[:1]) | {first: (0, 0)})
        )


def test_what_was_truncated_before_a_query_is_named_over_epochs(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 58: what is gone as a whole cannot be counted, and says so; the rest is counted."""
    scaled(shop)
    strict, lenient = drivers(maxEventsPerTrigger=20), drivers(maxEventsPerTrigger=20, failOnDataLoss="false")
    middle = strict.end(strict.start())
    (first,) = segments_of(middle)
    head = shop.client.stream_cut(shop.stream, after_events=90)
    shop.client.truncate_stream(shop.stream, head)

    with pytest.raises(DataLossError, match=rf"segment {first} from \d+\.0 to its end") as caught:
        strict.end(middle)
    assert first not in head.places
    assert [gap.events is None for gap in caught.value.missing] == [
        gap.end_offset is None for gap in caught.value.missing
    ]
    batches = list(lenient.batches(middle))
    rows = [row for _, _, more in batches for row in more]
    assert sorted(rows) == sorted(rows_of_events(shop.plain()))
    counted = sum(gap.events or 0 for gap in caught.value.missing)
    assert batches[-1][1]["lost"] == counted > 0
    with pytest.raises(DataLossError):
        strict.reader.partitions(middle, batches[0][1])


def test_a_checkpoint_at_a_cut_that_a_truncation_respects_loses_nothing(shop: Shop, drivers: Drivers) -> None:
    """Retention by consumption drops up to a cursor: the cut of a checkpoint, at the end of a replaced segment too."""
    shop.create()
    shop.write(5)
    driver = drivers()
    read = driver.end(driver.start())
    shop.scale(0.5)
    shop.write(5)
    shop.client.truncate_stream(shop.stream, millrace.StreamCut.parse(read["cut"]))

    rows = [row for _, _, more in drivers().batches(read) for row in more]
    assert len(rows) == 50


@pytest.mark.parametrize("whole", [False, True])
def test_a_truncation_under_a_task_is_named_or_skipped(shop: Shop, drivers: Drivers, *, whole: bool) -> None:
    """Behaviour 58: also of a whole segment, between plan and task."""
    shop.create()
    shop.write(10)
    border = shop.client.stream_cut(shop.stream)
    shop.write(10)
    shop.scale(0.5)
    shop.write(10)
    strict, lenient = drivers(), drivers(failOnDataLoss="false")
    start = strict.start()
    end = drivers().reader.latestOffset()
    reader = strict.reader
    partitions = list(reader.partitions(start, end))
    (first,) = border.places
    shop.client.truncate_stream(shop.stream, shop.client.stream_cut(shop.stream, after_events=200) if whole else border)

    with pytest.raises(DataLossError, match=rf"segment {first} from 0\.0 to \d+"):
        rows_of_tasks(reader, partitions)
    assert len(rows_of_tasks(lenient.reader, partitions)) == (100 if whole else 200)


def test_a_batch_that_runs_again_leaves_out_what_is_deleted_and_counts_it(shop: Shop, drivers: Drivers) -> None:
    """Behaviour 58: of the events that a later offset did not count."""
    scaled(shop)
    driver = drivers(maxEventsPerTrigger=50, failOnDataLoss="false")
    first = driver.start()
    second = driver.end(first)
    third = driver.end(second)
    shop.client.truncate_stream(shop.stream, shop.client.stream_cut(shop.stream, after_events=55))

    assert len(driver.read(first, second)) == 0
    assert len(driver.read(second, third)) == 5
    assert driver.end(third)["lost"] > 0


def test_a_truncation_between_two_questions_of_a_plan_is_seen_by_the_next_run_of_it(shop: Shop) -> None:
    """Behaviour 58: so that it is named like any other, or gone past."""
    scaled(shop)
    first = shop.client.stream_info(shop.stream).head()
    options = parse_options(shop.options(partitionBytes="1k"))
    runs = 0

    async def plan(planner: Planner) -> list[RangePartition]:
        nonlocal runs
        snapshots = await planner.fetch({shop.stream: first.places})
        if not runs:
            cut = await planner.client.stream_cut(shop.stream).after_events(150)
            await planner.client.truncate_stream(shop.stream, cut)
        runs += 1
        (snapshot,) = snapshots.values()
        return await planner.partitions(
            {shop.stream: snapshot.head}, {shop.stream: snapshot.tail}, snapshots, is_batch=True
        )

    with closing(Link(options)) as link:
        partitions = run_plan(plan, link=link, options=options)
    assert runs == 2
    assert sum(part.size_bytes for partition in partitions for part in partition.ranges) == (
        shop.client.stream_info(shop.stream).size_bytes
    )


@pytest.mark.parametrize("split", [{}, {"partitionBytes": "1"}])
def test_events_before_a_cut_within_a_block_are_not_read(shop: Shop, drivers: Drivers, split: dict[str, str]) -> None:
    """Behaviour 58: what a truncation cuts off of a block is named, counted and skipped like whole blocks."""
    shop.create()
    shop.write(5, events=10)
    everything = rows_of_events(shop.plain())
    driver = drivers(maxEventsPerTrigger=22, **split)
    middle = driver.end(driver.start())
    _, planned = loaded(shop, startCut="head", **split)
    cut = shop.client.stream_cut(shop.stream, after_events=25)
    ((segment_id, place),) = cut.positions
    shop.client.truncate_stream(shop.stream, cut)

    assert place.event_index == 5
    assert batch_rows(shop, **split) == everything[25:]
    assert batch_rows(shop, startCut=cut, **split) == everything[25:]
    first, *later = [rows for _, _, rows in drivers(maxEventsPerTrigger=10, **split).batches()]
    assert (len(first), [row for rows in (first, *later) for row in rows]) == (10, everything[25:])
    gap = rf"segment {segment_id} from {place.offset}\.2 to {place.offset}\.5 \(3 events\)"
    with pytest.raises(DataLossError, match=gap):
        driver.end(middle)
    lenient = drivers(failOnDataLoss="false", **split)
    batches = list(lenient.batches(middle))
    assert [row for _, _, rows in batches for row in rows] == everything[25:]
    assert batches[-1][1]["lost"] == 3
    options = parse_options(shop.options(failOnDataLoss="false"))
    assert rows_of_tasks(MillraceBatchReader(options, SCHEMA, None), planned) == everything[25:]
