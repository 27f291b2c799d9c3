"""The examples of `docs/spark.md`, and those with Spark on the pages of the site, run in their order."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace import blocking
from millrace.client.testing import TestServer
from millrace.spark_source.options import OPTION_NAMES
from millrace.spark_source.rows import SCHEMA
from millrace.spark_source.sink.columns import COLUMN_TYPES
from millrace.spark_source.sink.options import SINK_OPTION_NAMES
from tests.spark_source.conftest import needs_limits

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "spark.md").read_text(encoding="utf-8")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@needs_limits
def test_the_examples_run(spark: SparkSession, server: TestServer) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example.replace("127.0.0.1:9240", server.address), "docs/spark.md", "exec"), names)

    assert len(examples) == 20
    assert names["spark"] is spark


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@needs_limits
@pytest.mark.parametrize(
    ("page", "scope", "checkpoint"), [("tutorial", "cafe", "large-orders"), ("how-to/spark", "bazaar", "cook")]
)
def test_the_examples_of_the_site_run(
    spark: SparkSession, millrace_server: TestServer, tmp_path: Path, page: str, scope: str, checkpoint: str
) -> None:
    examples = re.findall(r"```python spark\n(.*?)```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    with blocking.connect(millrace_server.address) as client:
        client.create_stream(f"{scope}/orders")
        if page == "tutorial":
            with client.writer(f"{scope}/orders") as writer:
                writer.write_many([b'{"amount": %d}' % number for number in range(1000)])
    for example in examples:
        code = example.replace("127.0.0.1:9240", millrace_server.address).replace(
            f"{checkpoint}-checkpoint", str(tmp_path)
        )
        for _ in range(2 if page == "tutorial" else 1):  # as its page says, a second run changes nothing
            exec(compile(code, page, "exec"), names)

    with blocking.connect(millrace_server.address) as client, client.reader([f"{scope}/*"], end="tail") as reader:
        count = sum(reader.stream_of(event) in {f"{scope}/large-orders", f"{scope}/cooked"} for event in reader)
    assert count == {"tutorial": 500, "how-to/spark": 10}[page]


def test_every_option_and_column_has_a_line() -> None:
    reading, writing = PAGE.split("## Writing a batch")

    assert _lines(reading) == [*SCHEMA.names, *OPTION_NAMES]
    assert _lines(writing) == [*COLUMN_TYPES, *SINK_OPTION_NAMES]


def _lines(text: str) -> list[str]:
    return re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
