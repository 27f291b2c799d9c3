"""The examples of `docs/spark.md`, run in their order."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace.client.testing import TestServer
from millrace.spark_source.options import OPTION_NAMES
from millrace.spark_source.rows import SCHEMA
from millrace.spark_source.sink.columns import COLUMN_TYPES
from millrace.spark_source.sink.options import SINK_OPTION_NAMES
from tests.spark_source.conftest import needs_limits

PAGE = Path(__file__).parents[2].joinpath("docs", "spark.md").read_text(encoding="utf-8")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@needs_limits
def test_the_examples_run(spark: SparkSession, server: TestServer) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example.replace("127.0.0.1:9240", server.address), "docs/spark.md", "exec"), names)

    assert len(examples) == 19
    assert names["spark"] is spark


def test_every_option_and_column_has_a_line() -> None:
    reading, writing = PAGE.split("## Writing a batch")

    assert _lines(reading) == [*SCHEMA.names, *OPTION_NAMES]
    assert _lines(writing) == [*COLUMN_TYPES, *SINK_OPTION_NAMES]


def _lines(text: str) -> list[str]:
    return re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
