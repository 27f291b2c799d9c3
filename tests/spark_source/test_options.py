import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace
from millrace.model.cut import SavedKind, SavedPlace, TimeCut
from millrace.model.selection import Selection
from millrace.spark_source.errors import OptionError
from millrace.spark_source.options import COLUMN_NAMES, SourceOptions, parse_options
from millrace.spark_source.values import Mode, ValueFormat
from tests.support.tables import table

GIVEN = {"address": "127.0.0.1", "stream": "shop/orders"}
ORDERS = Selection.of(["shop/orders"])


def test_two_options_are_enough() -> None:
    assert parse_options(GIVEN) == SourceOptions(address="127.0.0.1:9240", selection=ORDERS)


def test_every_option_is_read_without_regard_to_case() -> None:
    """Spark hands all names over in small letters."""
    options = parse_options(
        {
            **GIVEN,
            "startcut": "TAIL",
            "endcut": "shop/orders@1:8.2",
            "MAXBYTESPERTRIGGER": "64m",
            "maxeventspertrigger": "1000",
            "partitionbytes": "1 MiB",
            "minPartitions": "8",
            "cursor": "billing",
            "cursorhold": "12h",
            "columns": "Key, value",
            "failondataloss": "False",
            "token": "secret",
            "tls": "true",
        }
    )

    assert options == SourceOptions(
        address="127.0.0.1:9240",
        selection=ORDERS,
        start_cut=millrace.TAIL,
        end_cut=(millrace.StreamCut.of("shop/orders", {1: (8, 2)}),),
        max_bytes=64 << 20,
        max_events=1000,
        partition_bytes=1 << 20,
        min_partitions=8,
        cursor="billing",
        cursor_hold_s=43_200,
        columns=("key", "value"),
        fail_on_data_loss=False,
        token="secret",
        tls=True,
    )
    assert "secret" not in repr(options)


@table(
    ("text", "unix_us"),
    [
        ("1700000000000000", 1_700_000_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000_000),
        ("2023-11-14 23:13:20.000001+01:00", 1_700_000_000_000_001),
        ("2023-11-14T22:13:20", 1_700_000_000_000_000),
    ],
)
def test_a_cut_can_be_a_time(text: str, unix_us: int) -> None:
    """Behaviour 54: slices by time."""
    assert parse_options({**GIVEN, "startCut": text}).start_cut == TimeCut(unix_us)


@table(
    ("text", "size"),
    [
        ("1", 1),
        ("7b", 7),
        ("64m", 64 << 20),
        ("64M", 64 << 20),
        ("2k", 2048),
        ("1 GiB", 1 << 30),
        ("3tb", 3 << 40),
        ("9223372036854775807", (1 << 63) - 1),
    ],
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert parse_options({**GIVEN, "maxBytesPerTrigger": text}).max_bytes == size


@table(
    ("option", "text", "reason"),
    [
        ("address", "", "missing"),
        ("address", "host:port", "is not an address: write HOST:PORT"),
        ("stream", " ", "missing"),
        ("startCut", "yesterday", "is not a place in a stream: write head, tail"),
        ("startCut", "bookmark:", "lacks the name of the bookmark"),
        ("startCut", "shop/orders@1:0.0;head", "not a stream cut"),
        ("startCut", "shop/orders@1:0.0;shop/orders@2:0.0", "two cuts of one stream"),
        ("startCut", "shop/orders@", "not a position"),
        ("endCut", "shop/carts@1:0.0", "a cut of shop/carts"),
        ("maxBytesPerTrigger", "64 x", "is not a size"),
        ("maxBytesPerTrigger", "0", "must be above 0"),
        ("maxBytesPerTrigger", "999999999t", "below 8 EiB"),
        ("maxEventsPerTrigger", "-1", "no number above 0"),
        ("maxEventsPerTrigger", "0", "no number above 0"),
        ("partitionBytes", "lots", "is not a size"),
        ("minPartitions", "0", "no number above 0"),
        ("stream", "shop/orders,", "is not of the form scope/name"),
        ("stream", "shop/orders,shop/orders", "named twice"),
        ("stream", "plant/*", r"is a pattern: write streamPattern=plant/\*"),
        ("streamPattern", "plant/sensor", "write stream=plant/sensor"),
        ("cursor", "", "1 to 255 bytes"),
        ("cursorHold", "0s", "between a second and"),
        ("cursorHold", "forever", "is not a duration"),
        ("columns", "value,colour", "no column 'colour'"),
        ("columns", "", "no column ''"),
        ("columns", "key,key", "named twice"),
        ("failOnDataLoss", "yes", "neither true nor false"),
        ("tls", "1", "neither true nor false"),
        ("valueFormat", "avro", "is none of json, arrow"),
        ("mode", "FAILFAST", "goes with valueFormat"),
        ("path", "/data", "unknown"),
        ("startCuts", "head", "did you mean startCut"),
    ],
)
def test_a_wrong_option_is_named(option: str, text: str, reason: str) -> None:
    """Behaviour 60."""
    with pytest.raises(OptionError, match=reason) as caught:
        parse_options({**GIVEN, option: text})

    assert caught.value.option == option
    assert f'option "{option}"' in str(caught.value)


@pytest.mark.parametrize("option", ["address", "stream"])
def test_a_missing_option_is_named(option: str) -> None:
    """Behaviour 60."""
    with pytest.raises(OptionError, match=f'option "{option}": missing'):
        parse_options({name: text for name, text in GIVEN.items() if name != option})


@given(st.sampled_from(["startCut", "endCut", "maxBytesPerTrigger", "failOnDataLoss", "address"]), st.text(max_size=40))
def test_no_text_raises_anything_else(option: str, text: str) -> None:
    with suppress(OptionError):
        parse_options({**GIVEN, option: text})


def test_headers_are_a_column_where_they_are_asked_for() -> None:
    plain = {"address": "127.0.0.1:9240", "stream": "shop/orders"}

    assert "headers" not in parse_options(plain).columns
    assert parse_options({**plain, "includeHeaders": "true"}).columns == COLUMN_NAMES
    assert parse_options({**plain, "includeHeaders": "true", "columns": "value"}).columns == ("value", "headers")
    assert parse_options({**plain, "columns": "headers,value"}).columns == ("headers", "value")


def test_a_slice_stands_for_stream_cuts_and_key() -> None:
    """Behaviour 54: slices by cuts and by time."""
    options = parse_options({"address": "127.0.0.1", "slice": "shop/orders@tail..2026-01-31T18:00:00Z#a key "})

    assert (options.selection, options.start_cut, options.key) == (ORDERS, millrace.TAIL, "a key ")
    assert options.end_cut == TimeCut(1_769_882_400_000_000)
    assert parse_options({**GIVEN, "key": " k"}).key == " k"
    for name in ("stream", "startCut", "endCut", "key"):
        with pytest.raises(OptionError, match="the option slice has it"):
            parse_options({"address": "127.0.0.1", "slice": "a/b@head..", name: "head"})
    with pytest.raises(OptionError, match="not a slice"):
        parse_options({"address": "127.0.0.1", "slice": "a/b"})


def test_a_cut_can_be_a_saved_place_or_a_time_ago() -> None:
    """The same words as everywhere; a time ago is that of one moment for the whole query."""
    before_us = time.time_ns() // 1000 - 900_000_000
    options = parse_options({**GIVEN, "startCut": "15m ago", "endCut": "bookmark:closing time"})
    after_us = time.time_ns() // 1000 - 900_000_000

    assert isinstance(options.start_cut, TimeCut)
    assert before_us <= options.start_cut.unix_us <= after_us
    assert options.end_cut == SavedPlace(SavedKind.BOOKMARK, "closing time")


def test_several_streams_have_one_cut_each_or_one_word_for_all() -> None:
    given = {"address": "127.0.0.1", "stream": "shop/orders, shop/returns", "streamPattern": "plant/*,mill/*"}
    first, second, third = (
        millrace.StreamCut.of(name, {number: (8, 0)})
        for number, name in enumerate(("shop/orders", "shop/returns", "plant/a"), 1)
    )
    options = parse_options({**given, "startCut": f"{first}; {third}", "endCut": f"{second};{first}"})

    assert options.selection == Selection.of(["shop/orders", "shop/returns", "plant/*", "mill/*"])
    assert options.start_of("shop/orders") == first
    assert options.start_of("shop/returns") is millrace.HEAD
    assert options.start_of("plant/a") == third
    assert options.end_of("shop/returns") == second
    assert parse_options({**given, "startCut": "tail"}).start_of("mill/b") is millrace.TAIL
    with pytest.raises(OptionError, match='"endCut": has no cut of plant/b'):
        options.end_of("plant/b")
    with pytest.raises(OptionError, match='"endCut": has no cut of shop/returns'):
        parse_options({**given, "endCut": str(first)})
    with pytest.raises(OptionError, match='"startCut": is a cut of shop/carts, and what is read is shop/orders'):
        parse_options({**given, "startCut": "shop/carts@1:0.0"})


def test_values_can_have_a_format() -> None:
    options = parse_options({**GIVEN, "valueformat": "JSON", "mode": "dropMalformed"})

    assert (options.value_format, options.mode) == (ValueFormat.JSON, Mode.DROPMALFORMED)
    assert parse_options({**GIVEN, "valueFormat": "arrow"}).mode is Mode.FAILFAST
    with pytest.raises(OptionError, match=r'option "mode": .* none of FAILFAST, DROPMALFORMED, PERMISSIVE'):
        parse_options({**GIVEN, "valueFormat": "arrow", "mode": "lenient"})


@pytest.mark.parametrize(("option", "text"), [("columns", "key"), ("includeHeaders", "true")])
def test_where_values_have_a_format_the_schema_names_the_columns(option: str, text: str) -> None:
    """Behaviour 60."""
    with pytest.raises(OptionError, match="goes without valueFormat") as caught:
        parse_options({**GIVEN, "valueFormat": "json", option: text})

    assert caught.value.option == option
