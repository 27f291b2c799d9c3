import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.client.errors import StreamSealedError
from millrace.client.write.routing import Router
from millrace.model.errors import EventTooLargeError, InvalidArgumentError
from millrace.model.key_range import KEY_SPACE, equal_ranges, key_place
from millrace.model.sequence_row import SEQUENCE_MAX, sequence_place
from millrace.wire import messages as m
from tests.support.tables import table


def segments(*borders: int, sealed: int = 0) -> list[m.StreamSegment]:
    """Segments 1, 2, ... between the borders and the ends of the key space."""
    places = [0, *borders, KEY_SPACE]
    return [
        m.StreamSegment(number, low, high - 1, 0, 0, 0, 0, 0, sealed)
        for number, (low, high) in enumerate(itertools.pairwise(places), start=1)
    ]


@given(
    borders=st.sets(st.integers(1, KEY_SPACE - 1), max_size=8),
    keys=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=20),
)
def test_a_key_goes_to_the_segment_whose_range_holds_its_place(borders: set[int], keys: list[str]) -> None:
    parts = segments(*sorted(borders))
    router = Router.of_stream("s/s", reversed(parts))

    expected = [next(part.segment_id for part in parts if part.low <= key_place(key) <= part.last) for key in keys]
    assert [router.segment_ids[router.number_of(key)] for key in keys] == expected
    assert [router.segment_ids[number] for number in router.numbers_of(keys)] == expected


@given(
    borders=st.sets(st.integers(1, KEY_SPACE - 1), max_size=8),
    sequences=st.lists(st.one_of(st.integers(0, 5000), st.integers(0, SEQUENCE_MAX)), max_size=20),
)
def test_an_event_without_a_key_goes_where_its_sequence_belongs(borders: set[int], sequences: list[int]) -> None:
    router = Router.of_stream("s/s", segments(*sorted(borders)))

    numbers = [router.number_of_sequence(sequence) for sequence in sequences]

    assert numbers == [router.number_at(sequence_place(sequence)) for sequence in sequences]


def test_equal_ranges_cover_the_key_space() -> None:
    parts = [
        m.StreamSegment(number, part.low, part.high - 1, 0, 0, 0, 0, 0, 0)
        for number, part in enumerate(equal_ranges(7), start=1)
    ]

    assert len(Router.of_stream("s/s", parts)) == 7


def test_a_stream_without_an_open_segment_is_sealed() -> None:
    with pytest.raises(StreamSealedError):
        Router.of_stream("s/s", segments(sealed=1))


@table("missing", [0, 1, 2])
def test_a_key_space_with_a_hole_is_refused(missing: int) -> None:
    parts = segments(1 << 62, 1 << 63)
    del parts[missing]

    with pytest.raises(InvalidArgumentError):
        Router.of_stream("s/s", parts)


def test_keys_that_cannot_be_stored_are_refused() -> None:
    router = Router.of_stream("s/s", segments())

    with pytest.raises(InvalidArgumentError):
        router.number_of("\ud800")
    with pytest.raises(EventTooLargeError):
        router.number_of("é" * 32769)
    with pytest.raises(TypeError):
        router.number_of(b"bytes")  # type: ignore[arg-type]  # wrong on purpose
