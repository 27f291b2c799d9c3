from millrace.model.event import Event
from millrace.server.console.event_page import VALUE_SIZE_BYTES_MAX, shown


def row(value: bytes) -> dict[str, object]:
    return shown(Event(value, "k", 1, 2, 3, 4))


def test_a_short_value_is_shown_whole() -> None:
    assert row(b"<b>") == {
        "value": "<b>", "key": "k", "timestamp_us": 1, "segment": 2, "offset": 3, "index": 4, "headers": {},
        "value_size_bytes": 3,
    }  # fmt: skip
    assert row(b"v" * VALUE_SIZE_BYTES_MAX)["value"] == "v" * VALUE_SIZE_BYTES_MAX


def test_a_long_value_is_shown_in_part_up_to_a_whole_character() -> None:
    text = "v" + "ä" * VALUE_SIZE_BYTES_MAX
    assert row(text.encode()) == {
        **row(b""),
        "value": "v" + "ä" * (VALUE_SIZE_BYTES_MAX // 2 - 1),
        "value_size_bytes": 1 + 2 * VALUE_SIZE_BYTES_MAX,
    }


def test_bytes_that_are_no_text_are_base_64() -> None:
    assert row(b"\xff\xfe")["value_base64"] == "//4="
    long = row(b"\xff" * 9 * VALUE_SIZE_BYTES_MAX)
    assert len(str(long["value_base64"])) < 2 * VALUE_SIZE_BYTES_MAX
    assert long["value_size_bytes"] == 9 * VALUE_SIZE_BYTES_MAX
