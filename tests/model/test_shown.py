from dataclasses import dataclass

from millrace.model.cut import HEAD, StreamCut, TimeCut
from millrace.model.event import Event
from millrace.model.shown import BYTES_MAX, Handle, PublicNames, ShortRepr, short
from tests.support.tables import table


@table(
    ("value", "shown"),
    [
        (b"x" * BYTES_MAX, repr(b"x" * BYTES_MAX)),
        (b"x" * 8_000_000, f"{b'x' * BYTES_MAX!r}... (8,000,000 bytes)"),
        ("é" * 1000, f"'{'é' * BYTES_MAX}'... (1,000 characters)"),
        ((), "()"),
        ((1,), "(1,)"),
        ([1, 2], "[1, 2]"),
        (tuple(range(5)), "(0, 1, 2, 3, 4)"),
        (list(range(1005)), "[0, 1, 2, 3, 4, ... 1,000 more]"),
        ({n: n for n in range(6)}, "{0: 0, 1: 1, 2: 2, 3: 3, 4: 4, ... 1 more}"),
        (None, "None"),
    ],
)
def test_a_value_is_shown_shortly_with_how_much_there_is(value: object, shown: str) -> None:
    assert short(value) == shown


@dataclass(frozen=True, slots=True, repr=False)
class Point(ShortRepr):
    x: int
    data: bytes


def test_a_dataclass_shows_the_call_that_makes_it() -> None:
    assert repr(Point(1, b"abc")) == "Point(x=1, data=b'abc')"
    assert eval(repr(Point(1, b"abc"))) == Point(1, b"abc")
    assert len(repr(Point(1, bytes(10**6)))) < 250


def test_an_event_shows_no_whole_value() -> None:
    event = Event(b"v" * 10**6, "k" * 10**5, None, 1, 2, 3, {"name": b"h" * 10**5})

    assert "(1,000,000 bytes)" in repr(event)
    assert "(100,000 characters)" in repr(event)
    assert "(100,000 bytes)" in repr(event)
    assert len(repr(event)) < 500
    assert dir(event) == ["headers", "index", "key", "offset", "position", "segment", "timestamp_us", "value"]


def test_a_cut_of_many_segments_is_shown_shortly_and_written_whole() -> None:
    cut = StreamCut.of("a/b", dict.fromkeys(range(1, 1001), (0, 0)))

    assert "... 995 more" in repr(cut)
    assert StreamCut.parse(str(cut)) == cut
    assert dir(cut) == ["of", "parse", "places", "positions", "stream"]
    assert dir(TimeCut(0)) == ["at", "unix_us"]
    assert {"name", "value"} <= set(dir(HEAD)) <= {"name", "value", "HEAD", "TAIL"}  # by the version of Python


class Door(Handle):
    _unlisted = frozenset({"hinge"})

    def __init__(self) -> None:
        self.hinge = 1
        self.colour = "red"

    def _facts(self):  # type: ignore[no-untyped-def]  # as short as can be
        yield f"of {self.colour}"
        yield "open"


def test_a_handle_shows_what_it_is_of_and_its_public_names() -> None:
    assert repr(Door()) == "<millrace.Door of red, open>"
    assert dir(Door()) == ["colour"]


def test_a_handle_whose_making_failed_can_be_shown() -> None:
    assert repr(Door.__new__(Door)) == "<millrace.Door not made>"


def test_names_with_an_underscore_are_not_listed() -> None:
    assert dir(PublicNames()) == []
