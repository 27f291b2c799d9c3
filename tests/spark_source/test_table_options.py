"""The options of tables in Spark's catalog, with the calls that Spark makes; no JVM is needed."""

import json

import pytest
from pyspark.sql.types import StructType

from millrace.spark_source import MillraceDataSource, OptionError
from millrace.spark_source.options import parse_options
from millrace.spark_source.rows import SCHEMA, schema_of
from millrace.spark_source.sink.options import SINK_OPTION_NAMES, parse_sink_options
from millrace.spark_source.table_options import given_options, is_of_table, options_of, with_options

GIVEN = {"address": "127.0.0.1:1", "stream": "shop/orders", "columns": "value,key", "token": "secret"}
CREATED = {
    **GIVEN,
    **{f"option.{name}": value for name, value in GIVEN.items()},
    "provider": "millrace",
    "owner": "root",
    "location": "file:/data",
    "path": "file:/data",
}
"""What Spark 4.3 passes at CREATE TABLE."""


def stored(schema: StructType) -> StructType:
    """Return a schema as the catalog stores it."""
    return StructType.fromJson(json.loads(schema.json()))


TABLE = stored(with_options(schema_of(["value", "key"]), GIVEN))


def test_the_properties_of_a_table_are_not_options() -> None:
    assert is_of_table(CREATED)
    assert given_options(CREATED) == GIVEN
    assert given_options(GIVEN) == GIVEN
    assert given_options({"provider": "millrace", "owner": "root"}) == {}


def test_a_table_has_its_options_in_its_schema_without_the_token() -> None:
    assert options_of(TABLE, {}) == {name: value for name, value in GIVEN.items() if name != "token"}
    assert "secret" not in TABLE.json()
    assert TABLE.names == ["value", "key"]


def test_options_where_a_table_is_used_replace_its_own() -> None:
    assert options_of(TABLE, {"STREAM": "shop/returns", "token": "other"}) == {
        "address": "127.0.0.1:1",
        "columns": "value,key",
        "STREAM": "shop/returns",
        "token": "other",
    }


def test_a_reader_with_address_and_streams_takes_nothing_from_its_schema() -> None:
    """The schema of a DataFrame that was read from a table may be given to any reader or writer."""
    for streams in ({"stream": "a/b"}, {"streamPattern": "a/*"}, {"slice": "a/b@head..tail"}):
        assert options_of(TABLE, {"address": "h", **streams}) == {"address": "h", **streams}
    assert options_of(SCHEMA, {"token": "t"}) == {"token": "t"}


def test_a_table_is_written_to_without_the_options_of_reading() -> None:
    options = parse_sink_options(options_of(TABLE, {}, names=SINK_OPTION_NAMES), is_streaming=False)
    assert (options.address, options.streams) == ("127.0.0.1:1", ("shop/orders",))


def test_a_table_without_options_says_where_to_write_them() -> None:
    with pytest.raises(OptionError, match=r'"address": missing, like all .*FROM the_table WITH \(address='):
        MillraceDataSource({}).reader(SCHEMA)
    with pytest.raises(OptionError, match=r"FROM the_table WITH \(address="):
        parse_sink_options({}, is_streaming=False)
    with pytest.raises(OptionError, match=r'"address": missing$'):
        parse_options({"stream": "a/b"})
