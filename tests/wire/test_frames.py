from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import Any

import pytest

from millrace.wire.frames import (
    DataFlag,
    EpochRecord,
    FrameType,
    Message,
    Ping,
    SegmentRangeRecord,
    StreamHistory,
    Throttle,
)
from millrace.wire.framing import CLASS_OF_TYPE, DECLARATIONS, ITEMS, decode, encode
from tests.support.strategies import fields_of, unrenamed

NUMBERS = """
HELLO 1, HELLO_REPLY 2, ERROR 3, PING 4, PONG 5, THROTTLE 6, DONE 7, APPEND 16, APPEND_ACK 17, CREATE_SEGMENT 18,
GET_SEGMENT 19, SEGMENT_INFO 20, SEAL_SEGMENT 21, TRUNCATE_SEGMENT 22, DELETE_SEGMENT 23, MERGE_SEGMENT 24,
LIST_SEGMENTS 25, SEGMENT_LIST 26, READ 27, DATA 28, SUBSCRIBE 29, CREDIT 30, UNSUBSCRIBE 31, SET_ATTRIBUTE 32,
GET_ATTRIBUTE 33, ATTRIBUTE 34, OPEN_WRITER 35, WRITER_OPENED 36, GET_WRITER 37, GET_INDEX 38, SEEK 39, INDEX 40,
CREATE_STREAM 48, GET_STREAM 49, STREAM_INFO 50, LIST_STREAMS 51, STREAM_LIST 52, SEAL_STREAM 53, TRUNCATE_STREAM 54,
DELETE_STREAM 55, SCALE_STREAM 56, GET_STREAM_HISTORY 57, STREAM_HISTORY 58, UPDATE_STREAM 59, EXPLAIN_STREAM 60,
EXPLANATION 61, SAVE_CUT 62, FORGET_CUT 63, LIST_CUTS 64, CUT_LIST 65,
SEGMENT_CREATED 128, SEGMENT_SEALED 129, SEGMENT_TRUNCATED 130, SEGMENT_DELETED 131,
SEGMENT_MERGED 132, ATTRIBUTE_SET 133, WRITER_RECORDED 134, STREAM_CREATED 135, STREAM_SEALED 136,
STREAM_TRUNCATED 137, STREAM_DELETED 138, STREAM_SCALED 139, STREAM_UPDATED 140, CUT_SAVED 141, CUT_FORGOTTEN 142,
WRITERS_EXPIRED 143, UPTIME_COUNTED 144
"""


def test_numbers_of_frames_are_frozen() -> None:
    """Add lines for new types; never change one."""
    frozen = dict(pair.split() for pair in NUMBERS.replace("\n", " ").split(","))

    assert {frame_type.name: str(frame_type.value) for frame_type in FrameType} == frozen
    assert {flag.name: flag.value for flag in DataFlag} == {"AT_TAIL": 1, "END_OF_SEGMENT": 2}


def test_every_type_but_the_append_has_one_message() -> None:
    assert set(CLASS_OF_TYPE) == set(FrameType) - {FrameType.APPEND}
    assert {cls.type for cls in Message.__subclasses__()} == set(CLASS_OF_TYPE)


@pytest.mark.parametrize("cls", DECLARATIONS)
def test_a_message_is_named_after_its_type(cls: type[Message]) -> None:
    spelled = cls.type.name.replace("_", "").lower()

    assert cls.__name__.lower() == spelled or (cls.type is FrameType.ERROR and cls.__name__ == "ErrorReply")


@pytest.mark.parametrize("cls", DECLARATIONS)
def test_a_message_has_the_fields_of_its_declaration(cls: Any) -> None:
    declared = [name for name, _ in fields_of(DECLARATIONS[cls])]

    assert is_dataclass(cls)
    assert [field.name for field in fields(cls)] == declared


def item_fields(declaration: Any, name: str) -> list[tuple[str, Any]]:
    """The fields of the items of a list, declared."""
    return fields_of(unrenamed(unrenamed(dict(fields_of(declaration))[name].subcons[1]).subcon))


@pytest.mark.parametrize(("cls", "name"), [key for key in ITEMS if key[0] in DECLARATIONS])
def test_an_item_has_the_fields_of_its_declaration(cls: type[Message], name: str) -> None:
    declared = item_fields(DECLARATIONS[cls], name)

    assert ITEMS[cls, name]._fields == tuple(field for field, _ in declared)


def test_an_item_of_an_item_is_of_its_class() -> None:
    history = StreamHistory([EpochRecord(1, 2, "asked for", [3], [SegmentRangeRecord(4, 5, 6)])])

    _, decoded = decode(encode(history, request_id=1))

    assert isinstance(decoded, StreamHistory)
    assert decoded.epochs[0].created[0].last == 6


def test_a_message_is_a_value() -> None:
    assert Ping() == Ping()
    with pytest.raises(FrozenInstanceError):
        Throttle(1, "full").reason = "edited"  # type: ignore[misc]  # what is tested
    with pytest.raises((AttributeError, TypeError)):
        Throttle(1, "full").extra = 1  # type: ignore[attr-defined]  # what is tested
