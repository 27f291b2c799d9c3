"""How far a query has come, as its progress tells it."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from millrace.model.cut import StreamCut
from millrace.spark_source import SourceError, cut_of, cuts_of
from tests.spark_source.conftest import Batches, Shop


def query_at(*offsets: object) -> Any:
    """Return a query whose sources have come to these offsets; only its progress is there."""
    sources = [SimpleNamespace(endOffset=json.dumps(offset)) for offset in offsets]
    return SimpleNamespace(lastProgress=SimpleNamespace(sources=sources))


def offset(cut: str) -> dict[str, object]:
    ids = [part.split(":")[0] for text in cut.split(";") for part in text.partition("@")[2].split(",")]
    return {"cut": cut, "events": dict.fromkeys(ids, 0), "lost": 0, "cursor": "spark-1"}


def test_before_there_is_progress_there_is_no_cut() -> None:
    assert cuts_of(SimpleNamespace(lastProgress=None)) == {}  # type: ignore[arg-type]
    assert cut_of(SimpleNamespace(lastProgress=None)) is None  # type: ignore[arg-type]
    assert cut_of(query_at(None)) is None


def test_sources_of_other_kinds_are_left_out() -> None:
    cut = StreamCut.parse("a/b@1:2.3")
    assert cut_of(query_at({"orders": {"0": 12}}, offset(str(cut)), 17)) == cut


def test_of_several_streams_one_is_to_be_named() -> None:
    query = query_at(offset("a/b@1:2.3;a/c@2:0.0"), offset("a/d@3:0.0"))

    assert sorted(cuts_of(query)) == ["a/b", "a/c", "a/d"]
    assert str(cut_of(query, "a/c")) == "a/c@2:0.0"
    assert cut_of(query, "a/x") is None
    with pytest.raises(SourceError, match="several streams, name one: a/b, a/c, a/d"):
        cut_of(query)
    assert cut_of(query_at(offset("a/b@1:2.3"), offset("a/b@1:2.3"))) == StreamCut.parse("a/b@1:2.3")
    with pytest.raises(SourceError, match="reads a/b twice"):
        cut_of(query_at(offset("a/b@1:2.3"), offset("a/b@1:2.4")))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_the_cut_of_a_query_that_runs_is_what_its_sink_has(spark: SparkSession, shop: Shop, batches: Batches) -> None:
    shop.create(2)
    shop.write(10)
    seen: list[StreamCut | None] = []

    def sink(frame: DataFrame, number: int) -> None:
        batches(frame, number)

    query = shop.run(spark, sink, trigger={"processingTime": "0 seconds"}, maxEventsPerTrigger=30)
    for _ in range(2):
        query.processAllAvailable()
        seen.append(cut_of(query, shop.stream))
        assert sorted(batches.all) == sorted(
            (event.value, event.key, event.timestamp_us, event.segment, event.offset, event.index)
            for event in shop.plain(end=seen[-1])
        )
        shop.write(5)
    query.processAllAvailable()
    query.stop()

    assert seen[0] != seen[1]
    assert cut_of(query) == shop.client.stream_cut(shop.stream)
