"""Objects in JSON, and what is said of those that are none."""

import json
import uuid
from typing import Any

import pytest

from millrace.server.ownership.fields import SIZE_BYTES_MAX, TEXT_SIZE_MAX, Fields, encode_fields, utc_text
from tests.support.tables import table


def decoded(**content: Any) -> Fields:
    return Fields.decode(encode_fields({"format_version": 1, **content}), version=1)


def test_each_kind_is_read_as_it_was_written() -> None:
    known = uuid.uuid4()
    fields = decoded(
        number=7,
        flag=True,
        text="ä\n",
        time="2026-01-31T12:00:00+00:00",
        id=str(known),
        ids=[str(known)],
        inner={"a": 1},
    )
    assert fields.number("number") == 7
    assert fields.seconds("number", least=1, most=10) == 7.0
    assert fields.flag("flag")
    assert fields.text("text") == fields.text_or_none("text") == "ä\n"
    assert fields.time("time") == "2026-01-31T12:00:00+00:00"
    assert fields.uuid("id") == fields.uuid_or_none("id") == known
    assert fields.uuids("ids", count_max=1) == (known,)
    assert fields.inside("inner").number("a") == 1
    fields.end()


def test_nothing_may_stand_where_it_is_asked_for() -> None:
    fields = decoded(a=None)
    assert fields.uuid_or_none("a") is None
    assert fields.text_or_none("a") is None
    assert fields.inside_or_none("a") is None


@table(
    ("content", "words"),
    [
        (b"", "not a JSON object"),
        (b"\xff", "not a JSON object"),
        (b"[]", r"it is \[\]; it must be an object"),
        (b"[" * 60_000, "nested too deeply|not a JSON object"),
        (b"{}", "format_version is missing"),
        (b'{"format_version": true}', "format_version is True; it must be a whole number of at least 0"),
        (b'{"format_version": 2}', "in format 2; this version knows format 1 only"),
        (b" " * (SIZE_BYTES_MAX + 1), f"has {SIZE_BYTES_MAX + 1} bytes; it must have at most {SIZE_BYTES_MAX}"),
    ],
)
def test_what_is_no_object_is_refused(content: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Fields.decode(content, version=1)


@table(
    ("method", "options", "wrong", "words"),
    [
        ("number", {}, 1.0, "a whole number of at least 0"),
        ("number", {}, -1, "a whole number of at least 0"),
        ("number", {}, 2**63, "a whole number of at least 0"),
        ("number", {"least": 1}, 0, "a whole number of at least 1"),
        ("seconds", {"least": 1, "most": 600}, 0.5, "a number of seconds from 1 to 600"),
        ("seconds", {"least": 1, "most": 600}, float("nan"), "a number of seconds from 1 to 600"),
        ("seconds", {"least": 1, "most": 600}, True, "a number of seconds from 1 to 600"),
        ("flag", {}, 1, "true or false"),
        ("text", {}, 1, "a text"),
        ("text", {}, "x" * (TEXT_SIZE_MAX + 1), "a text"),
        ("time", {}, "yesterday", "a time in UTC"),
        ("time", {}, "2026-01-31T12:00:00", "a time in UTC"),
        ("time", {}, "2026-01-31T12:00:00+01:00", "a time in UTC"),
        ("uuid", {}, "x", "a UUID"),
        ("uuid", {}, "{11111111-1111-4111-8111-111111111111}", "a UUID"),
        ("uuids", {"count_max": 1}, "x", "a list of at most 1 UUIDs"),
        ("uuids", {"count_max": 1}, [str(uuid.UUID(int=1))] * 2, "a list of at most 1 UUIDs"),
        ("uuids", {"count_max": 1}, [None], "a list of at most 1 UUIDs"),
        ("inside", {}, [], "an object"),
    ],
)
def test_a_wrong_value_is_named_with_its_field_and_what_it_must_be(
    method: str, options: dict[str, Any], wrong: Any, words: str
) -> None:
    fields = decoded(outer={"inner": wrong}).inside("outer")
    with pytest.raises(ValueError, match=rf"outer\.inner is .*; it must be {words}") as caught:
        getattr(fields, method)("inner", **options)
    assert len(str(caught.value)) < 300


def test_a_field_that_is_missing_or_not_known_is_named() -> None:
    with pytest.raises(ValueError, match="a is missing"):
        decoded().text("a")
    fields = decoded(b=1, c=2)
    fields.number("c")
    with pytest.raises(ValueError, match="b is not a field that this version knows"):
        fields.end()


def test_a_path_as_long_as_there_can_be_fits_twice() -> None:
    longest = "\x01" * 4096
    assert len(encode_fields({"folder": longest, "place": longest})) < SIZE_BYTES_MAX
    assert json.loads(encode_fields({"a": "\\xff" * 4096}))["a"] == "\\xff" * 4096


def test_a_time_is_written_in_utc() -> None:
    assert utc_text(1_769_860_800_999_999) == "2026-01-31T12:00:00+00:00"
