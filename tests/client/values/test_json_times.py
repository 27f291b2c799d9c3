import datetime as dt

import pyarrow as pa

from millrace.client.values.json_decoder import JsonDecoder
from millrace.client.values.json_times import read_times
from tests.support.tables import table

MICROS_UTC = pa.timestamp("us", tz="UTC")


def micros(text: str) -> int:
    return int(dt.datetime.fromisoformat(text).timestamp()) * 1_000_000


AT_18 = micros("2026-01-31T18:00:00+00:00")


@table(
    ("text", "expected"),
    [
        *(
            (f"2026-01-31T18:00:00.{'123456789'[:count]}Z", int("123456789"[:count].ljust(6, "0")[:6]))
            for count in range(1, 10)
        ),
        ("2026-01-31t18:00:00z", 0),
        ("2026-01-31 18:00:00.5z", 500_000),
        ("2026-01-31T19:00:00+0100", 0),
        ("2026-01-31t19:30:00.123456789+01:30", 123_456),
        ("2026-01-31T17:00:00.1234567-01", 123_456),
        ("2026-01-31T18:00", 0),
        ("2026-01-31T18:00:00.1234567", 123_456),
    ],
)  # fmt: skip
def test_a_time_is_read_as_other_languages_print_it(text: str, expected: int) -> None:
    """Behaviour 107: as Go, Java and .NET do; for times in UTC and for local ones, alone or among others."""
    for kind in (MICROS_UTC, pa.timestamp("us")):
        texts = pa.array([text, None, "2026-01-31T18:00:00Z", "2026-01-31"])
        read = read_times(texts, kind)
        assert read.type == kind
        assert read.cast(pa.int64()).to_pylist() == [AT_18 + expected, None, AT_18, micros("2026-01-31T00:00:00+00:00")]


def test_digits_below_the_unit_are_cut_off_before_1970_too() -> None:
    texts = pa.array(["1969-12-31T23:59:59.123456789Z"])

    read = {unit: read_times(texts, pa.timestamp(unit)).cast(pa.int64())[0].as_py() for unit in ("s", "ms", "us", "ns")}

    assert read == {"s": -1, "ms": -877, "us": -876_544, "ns": -876_543_211}


@table(
    "text",
    ["now", "", "2026-01-31T18:00:00.1234567890Z", "2026-01-31T24:00:00Z", "2026-01-31T18:00:00,5Z",
     "10000-01-01T00:00Z", "2026-01-31T18:00:00.5Zz", "2026-01-31T18:00:00.123.4567Z"],
)  # fmt: skip
def test_what_is_not_a_time_is_malformed_and_named(text: str) -> None:
    schema = pa.schema([pa.field("at", MICROS_UTC)])
    values = pa.array([b'{"at": "%s"}' % each.encode() for each in ("2026-01-31T18:00:00.1234567z", text)], pa.binary())

    (decoded,) = JsonDecoder(schema).decode(values)

    assert decoded.columns.column(0).cast(pa.int64()).to_pylist() == [AT_18 + 123_456]
    (malformed,) = decoded.malformed
    assert "is not a timestamp" in str(malformed)
    assert text.upper() in str(malformed)
