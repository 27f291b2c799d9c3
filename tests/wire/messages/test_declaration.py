import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.model.limits import SEGMENTS_PER_STREAM_MAX
from millrace.wire import messages as m
from millrace.wire.framing import decode, encode
from millrace.wire.messages.declaration import U8, WRITERS, Required, message
from tests.support.strategies import fields_of, unrenamed, values_of
from tests.support.tables import table

NUMBERS = """
HELLO 1, HELLO_REPLY 2, ERROR_REPLY 3, PING 4, PONG 5, THROTTLE 6, DONE 7, APPEND 16, APPEND_ACK 17,
CREATE_SEGMENT 18, GET_SEGMENT 19, SEGMENT_INFO 20, SEAL_SEGMENT 21, TRUNCATE_SEGMENT 22, DELETE_SEGMENT 23,
MERGE_SEGMENT 24, LIST_SEGMENTS 25, SEGMENT_LIST 26, READ 27, DATA 28, SUBSCRIBE 29, CREDIT 30, UNSUBSCRIBE 31,
SET_ATTRIBUTE 32, GET_ATTRIBUTE 33, ATTRIBUTE 34, OPEN_WRITER 35, WRITER_OPENED 36, GET_WRITER 37, GET_INDEX 38,
SEEK 39, INDEX 40, SEQUENCED_APPEND 41, TELL_STORED 42, RESET_SEQUENCES 43, SEEK_BEFORE 44, INTERVAL 45,
RELEASE_STREAM 46,
CREATE_STREAM 48, GET_STREAM 49, STREAM_INFO 50, LIST_STREAMS 51, STREAM_LIST 52, SEAL_STREAM 53,
TRUNCATE_STREAM 54, DELETE_STREAM 55, SCALE_STREAM 56, GET_STREAM_HISTORY 57, STREAM_HISTORY 58, UPDATE_STREAM 59,
EXPLAIN_STREAM 60, EXPLANATION 61, FORGET_CUT 63, LIST_CUTS 64, CUT_LIST 65, SAVE_CUTS 66, GET_TAILS 67,
STREAM_TAILS 68,
RESERVE_IDS 80, ID_RANGE 81, BEGIN_TRANSACTION 82, TRANSACTION_INFO 83, ADD_PARTS 84, COMMIT_TRANSACTION 85,
ABORT_TRANSACTION 86, GET_TRANSACTION 87, RENEW_TRANSACTIONS 88, PREPARE_TRANSACTION 89,
LIST_TRANSACTIONS 90, TRANSACTION_LIST 91, TRANSACTION_REPLY 92,
GET_PRODUCER 96, PRODUCER_INFO 97, RESET_PRODUCER 98, DELETE_PRODUCER 99,
SEGMENT_CREATED 128, SEGMENT_SEALED 129, SEGMENT_TRUNCATED 130, SEGMENT_DELETED 131,
SEGMENT_MERGED 132, ATTRIBUTE_SET 133, WRITER_RECORDED 134, STREAM_CREATED 135, STREAM_SEALED 136,
STREAM_TRUNCATED 137, STREAM_DELETED 138, STREAM_SCALED 139, STREAM_UPDATED 140, CUT_FORGOTTEN 142,
WRITERS_EXPIRED 143, UPTIME_COUNTED 144, STORED_TOLD 145, SEQUENCES_REFUSED 146, SEQUENCES_RESET 147, CUTS_SAVED 148,
EXCLUSIVE_RELEASED 149, STREAM_START_MOVED 150,
IDS_RESERVED 160, TRANSACTION_BEGUN 161, PARTS_ADDED 162, TRANSACTION_COMMITTED 163, TRANSACTIONS_ENDED 164,
OUTCOMES_FORGOTTEN 165, TRANSACTION_PREPARED 166,
PRODUCER_TAKEN 170, PRODUCER_RESET 171, SEQUENCE_DESCRIBED 172, PRODUCERS_FORGOTTEN 173
"""

REQUESTS = [cls for cls in m.MESSAGES.values() if issubclass(cls, m.Request)]
every_message = table("cls", m.MESSAGES.values(), ids=lambda cls: str(cls.__name__))


def test_numbers_of_messages_are_frozen() -> None:
    """Add lines for new types; never change one. 62 and 141 were those of a single cut."""
    frozen = dict(pair.split() for pair in NUMBERS.replace("\n", " ").split(","))

    assert {cls.type.name: str(int(number)) for number, cls in m.MESSAGES.items()} == frozen
    assert {flag.name: flag.value for flag in m.DataFlag} == {"AT_TAIL": 1, "END_OF_SEGMENT": 2}


@every_message
def test_a_message_has_the_fields_of_its_layout(cls: Any) -> None:
    declared = [name for name, _ in fields_of(cls.layout)]

    assert is_dataclass(cls)
    assert [field.name for field in fields(cls)] == declared


@every_message
def test_an_item_has_the_fields_of_its_layout(cls: Any) -> None:
    for name, item in m.item_classes(cls).items():
        array = dict(fields_of(cls.layout))[name]
        declared = fields_of(unrenamed(unrenamed(array.subcons[1]).subcon))

        assert item._fields == tuple(field for field, _ in declared)


def test_an_item_of_an_item_is_of_its_class() -> None:
    history = m.StreamHistory([m.EpochRecord(1, 2, "asked for", [3], [m.SegmentRangeRecord(4, 5, 6)])])

    _, decoded = decode(encode(history, request_id=1))

    assert isinstance(decoded, m.StreamHistory)
    assert decoded.epochs[0].created[0].last == 6


def test_a_message_is_a_value() -> None:
    assert m.Ping() == m.Ping() != m.Pong()
    assert {m.Throttle(1, "full")} == {m.Throttle(1, "full")}
    assert m.Throttle(1, "full") != m.Throttle(1, "empty")
    assert m.SealSegment(1) != m.DeleteSegment(1)
    throttle = m.Throttle(1, "full")
    assert eval(repr(throttle), vars(m)) == throttle
    throttle.reason = throttle.reason  # type: ignore[misc]  # what is tested: that the type checkers refuse it
    with pytest.raises((AttributeError, TypeError)):
        m.Throttle(1, "full").extra = 1  # type: ignore[attr-defined]  # what is tested


def test_nothing_is_derived_of_a_message_that_is_not_used() -> None:
    """Else every program would derive it for all, and start later. Appends are scanned by their layouts."""
    program = (
        "from millrace.wire import framing, messages as m;"
        "print(*[cls.__name__ for cls in m.MESSAGES.values() if 'layout' in vars(cls)])"
    )
    derived = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()

    assert {*derived} == {"Append", "Data", "SequencedAppend"}


def test_what_is_derived_of_a_message_is_its_own() -> None:
    """Nothing is kept where the subclasses of a base would find it."""
    with pytest.raises(AttributeError, match="FromClient is a base of messages, and has no layout"):
        _ = m.FromClient.layout
    assert m.Hello.layout is m.Hello.layout
    assert m.Hello.entity_fields == ()


@every_message
def test_every_message_says_who_sends_it(cls: type[m.Message]) -> None:
    senders = [m.FromClient, m.FromServer, m.FromBoth, m.Record]

    assert sum(issubclass(cls, sender) for sender in senders) == 1


@table("cls", REQUESTS, ids=lambda cls: str(cls.__name__))
def test_every_request_is_answered_by_what_a_server_sends(cls: type[m.Request[Any]]) -> None:
    assert issubclass(cls.reply, m.FromServer)


def test_a_message_without_a_sender_cannot_be_declared() -> None:
    with pytest.raises(AssertionError, match="who sends it"):
        message(127)(type("Lost", (m.Message,), {}))


@pytest.mark.parametrize(("number", "base"), [(200, m.FromServer), (120, m.Record)])
def test_records_have_numbers_of_their_own(number: int, base: type[m.Message]) -> None:
    with pytest.raises(AssertionError, match="records have numbers from 128 on"):
        message(number)(type("Misplaced", (base,), {"__annotations__": {"changed": U8}}))


def test_a_number_is_given_once() -> None:
    with pytest.raises(AssertionError, match="has the number of Hello"):
        message(1)(type("Second", (m.FromClient,), {}))


# --- what a request needs in memory ---

NAMING_FIELDS = {
    "segment_id": "segments",
    "segment_ids": "segments",
    "source_id": "segments",
    "source": "segments",
    "target_id": "segments",
    "writer_id": "writers",
    "writer_number": "writers",
    "stream": "streams",
    "stream_id": "streams",
    "number": "transactions",
    "numbers": "transactions",
    "producer_id": "producers",
    "name": "",  # of a segment, of a stream or of a transaction
}
"""Fields whose value leads to a segment, a stream, a writer, a transaction or a producer, and to which of them."""

OTHER_FIELDS = {"server_id", "session_id", "sealed_ids"}
"""They look as if they did. What is sealed by a scale are segments of the stream, which are loaded with it."""

PARTS_OF_STREAMS = {m.OpenWriter, m.TruncateStream, m.ScaleStream, m.SaveCuts, m.CommitTransaction}
"""They also name segments of their stream, which are loaded with it; others are refused unseen."""

NEW_PARTS = {m.BeginTransaction, m.AddParts}
"""They name segments by the items of a list, of which each says so."""


def naming_fields(cls: type[m.Message]) -> dict[str, str]:
    """Return the fields that lead to something, with the kind of things; "" for a name of any but a writer."""
    names = [name for name, _ in fields_of(cls.layout)]
    found = {}
    for name in names:
        if name in NAMING_FIELDS:
            found[name] = NAMING_FIELDS[name]
        elif name.endswith(("_id", "_ids", "_number", "_numbers", "_name", "_names")) and name not in OTHER_FIELDS:
            raise AssertionError(f"say whether {name} of {cls.__name__} leads to something that must be in memory")
    if "stream" in names:
        found.pop("name", None)  # of a cut
    return found


@table("cls", [cls for cls in REQUESTS if cls.type not in m.APPENDS], ids=lambda cls: str(cls.__name__))
def test_every_field_that_names_something_says_so(cls: type[m.Message]) -> None:
    """A field that is forgotten would make the event loop read a disk. Appends have a check of their own."""
    found = {name: entity for name, entity in cls.entity_fields if "." not in name}

    assert set(found) == set(naming_fields(cls))
    for name, kind in naming_fields(cls).items():
        assert found[name].scope == kind or (not kind and found[name] != WRITERS)


def values_of_field(request: m.Message, name: str) -> Any:
    name, _, field = name.partition(".")
    value = getattr(request, name)
    return [getattr(item, field) for item in value] if field else value


def test_what_the_items_of_a_list_name_is_required() -> None:
    request = m.GetTails([m.NamedStream("a/b"), m.NamedStream("a/c")])
    assert m.required_entities(request) == Required(open_streams=("a/b", "a/c"))


@given(st.data())
def test_what_is_named_is_what_is_in_the_fields(drawn: st.DataObject) -> None:
    cls: Any = drawn.draw(st.sampled_from([cls for cls in REQUESTS if cls.entity_fields]))
    names = [name for name, _ in fields_of(cls.layout)]
    fields = dict(zip(names, drawn.draw(values_of(cls.layout)), strict=True))
    for name, item in m.item_classes(cls).items():
        fields[name] = [item(*each) for each in fields[name]]
    request = cls(**fields)
    required = m.required_entities(request)

    for marked in {names for _, names in cls.entity_fields}:
        named = [values_of_field(request, name) for name, names in cls.entity_fields if names == marked]
        keys = [key for value in named for key in (value if isinstance(value, list) else [value])]
        assert list(required.pop(marked.scope, ())) == [key for key in keys if key]
    assert not required


def all_items(cls: type[Any]) -> Iterator[type[Any]]:
    """Yield the named tuples in the lists of a message, and in the lists of these."""
    for item in m.item_classes(cls).values():
        yield item
        yield from all_items(item)


def test_requests_that_name_segments_within_a_structure_are_known() -> None:
    """What nested records name is no field of the message: such a message needs a rule of its own."""
    nested = {cls for cls in REQUESTS if any("segment_id" in item._fields for item in all_items(cls))}
    listed = {cls for cls in REQUESTS if get_type_hints(cls).get("sealed_ids")}

    assert nested | listed == PARTS_OF_STREAMS | NEW_PARTS


def test_a_segment_is_named_by_its_name_where_it_has_no_id() -> None:
    assert m.required_entities(m.GetSegment(0, "raw/a")) == Required(segments=("raw/a",))
    assert m.required_entities(m.GetSegment(7, "")) == Required(segments=(7,))


@pytest.mark.parametrize("cls", [m.OpenWriter, m.GetWriter])
def test_of_more_segments_than_are_allowed_none_is_named(cls: Any) -> None:
    allowed = list(range(1, SEGMENTS_PER_STREAM_MAX + 1))
    rest = [0] * (len(dataclasses.fields(cls)) - 2)

    assert m.required_entities(cls("w", allowed, *rest)) == Required(writers=("w",), segments=tuple(allowed))
    assert m.required_entities(cls("w", [*allowed, 9999], *rest)) == Required(writers=("w",))


def test_a_record_names_all_that_it_lists() -> None:
    """It was decided: what it names must be there when it is applied, however much that is."""
    numbers = list(range(1, SEGMENTS_PER_STREAM_MAX + 2))
    record = m.WritersExpired(expired_us=1, marked=numbers, forgotten=[9999])

    assert m.required_entities(record) == Required(writers=(*numbers, 9999))


@table(
    "request_",
    [m.Ping(), m.ListSegments("raw/", "", 5), m.ListStreams("", "", 5), m.Credit(5)],
    ids=lambda request: str(request.type.name),
)
def test_what_names_nothing_needs_nothing(request_: m.Message) -> None:
    assert m.required_entities(request_) == Required()
