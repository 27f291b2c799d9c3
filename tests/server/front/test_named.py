"""What a request names is what is brought for it: no message may be forgotten, or the event loop would read a disk."""

import dataclasses
from typing import Any, get_args, get_type_hints

import pytest

from millrace.server.front.named import NOTHING, Named, named_by
from millrace.wire import frames as f
from millrace.wire.limits import SEGMENTS_PER_STREAM_MAX

NAMING_FIELDS = {
    "segment_id": "segments",
    "segment_ids": "segments",
    "source_id": "segments",
    "target_id": "segments",
    "writer_id": "writers",
    "writer_number": "writers",
    "stream": "streams",
    "stream_id": "streams",
    "name": "",  # of a segment or of a stream
}
"""Fields whose value leads to a segment, a stream or a writer, and to which of them."""

OTHER_FIELDS = {"server_id", "sealed_ids"}
"""They look as if they did. What is sealed by a scale are segments of the stream, which are brought with it."""

REPLIES = {f.SegmentInfo, f.Data, f.WriterOpened, f.StreamInfo}
"""They have such fields, too, but are sent by servers only."""

PARTS_OF_STREAMS = {f.TruncateStream, f.ScaleStream, f.SaveCut}
"""They also name segments of their stream, which are brought with it; others are refused unseen."""


MESSAGES = [kind for kind in vars(f).values() if isinstance(kind, type) and issubclass(kind, f.Message)]
MESSAGES.remove(f.Message)


def is_record(kind: type[f.Message]) -> bool:
    return kind.type >= f.FrameType.SEGMENT_CREATED


def naming_fields(kind: type[f.Message]) -> dict[str, str]:
    """Return the fields that lead to something, with the kind of things; "" for a name of a segment or of a stream."""
    names = set(get_type_hints(kind)) - {"type"}
    fields = {}
    for name in names:
        if name in NAMING_FIELDS:
            fields[name] = NAMING_FIELDS[name]
        elif name.endswith(("_id", "_ids", "_number", "_numbers", "_name", "_names")) and name not in OTHER_FIELDS:
            raise AssertionError(f"say whether {name} of {kind.__name__} leads to something that must be in memory")
    if "stream" in names:
        fields.pop("name", None)  # of a cut
    return fields


REQUESTS = [kind for kind in MESSAGES if kind not in REPLIES and not is_record(kind) and naming_fields(kind)]


def example(kind: type[f.Message]) -> Any:
    """Return a message with another value in each field."""
    values: dict[str, Any] = {}
    for number, (name, hint) in enumerate(get_type_hints(kind).items(), start=11):
        if name != "type":
            examples = {int: number, str: f"name-{number}", bytes: b"%d" % number, list[int]: [number, 100 + number]}
            values[name] = examples.get(hint, [])
    return kind(**values)


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: str(kind.__name__))
def test_every_request_that_names_something_has_it_brought(kind: type[f.Message]) -> None:
    message = example(kind)
    named = named_by(message)
    found = {"segments": named.segments, "writers": named.writers, "streams": named.streams}

    expected: set[Any] = set()
    for name, leads_to in naming_fields(kind).items():
        if kind is f.GetSegment and name == "name":
            continue  # it counts without an id only
        value = getattr(message, name)
        keys = set(value) if isinstance(value, list) else {value}
        assert keys <= set(found[leads_to] if leads_to else named.segments + named.streams)
        expected |= keys
    assert {key for keys in found.values() for key in keys} == expected


def test_requests_that_name_segments_within_a_structure_are_known() -> None:
    """What nested records name is no field of the message: whoever adds such a message is to think of it."""
    naming = {int, f.CutPosition, f.SavedPosition, f.SegmentRangeRecord, f.StreamSegment, f.WriterState}
    nested = {
        kind
        for kind in MESSAGES
        if not is_record(kind)
        for hint in get_type_hints(kind).values()
        if naming & set(get_args(hint))
    }

    replies = {f.ErrorReply, f.StreamInfo, f.WriterOpened}
    assert nested - replies == PARTS_OF_STREAMS | {f.OpenWriter, f.GetWriter}


def test_a_segment_is_brought_by_its_name_where_it_has_no_id() -> None:
    assert named_by(f.GetSegment(0, "raw/a")) == Named(segments=("raw/a",))
    assert named_by(f.GetSegment(7, "raw/a")) == Named(segments=(7,))


@pytest.mark.parametrize("kind", [f.OpenWriter, f.GetWriter])
def test_of_more_segments_than_are_allowed_none_is_brought(kind: Any) -> None:
    allowed = list(range(1, SEGMENTS_PER_STREAM_MAX + 1))
    rest = [0] * (len(dataclasses.fields(kind)) - 2)
    assert named_by(kind("w", allowed, *rest)) == Named(writers=("w",), segments=tuple(allowed))
    assert named_by(kind("w", [*allowed, 9999], *rest)) == Named(writers=("w",))


@pytest.mark.parametrize(
    "message",
    [f.Ping(), f.ListSegments("raw/", "", 5), f.ListStreams("", "", 5), f.Credit(5)],
    ids=lambda message: str(message.type.name),
)
def test_what_names_nothing_brings_nothing(message: f.Message) -> None:
    assert named_by(message) is NOTHING
