from hypothesis import given
from hypothesis import strategies as st

from millrace.cli.input_lines import LineSplitter
from millrace.model.limits import EVENT_SIZE_BYTES_MAX


@given(st.binary(max_size=60).map(lambda data: data.replace(b"\x00", b"\n")), st.lists(st.integers(1, 9), min_size=1))
def test_lines_and_their_numbers_are_those_of_the_whole_input(data: bytes, sizes: list[int]) -> None:
    splitter = LineSplitter()
    found: list[tuple[int, bytes]] = []
    rest = data
    while rest:
        size = sizes[len(found) % len(sizes)]
        lines = splitter.feed(rest[:size])
        found += zip(lines.numbers, lines.lines, strict=True)
        rest = rest[size:]
    lines = splitter.feed(b"")
    found += zip(lines.numbers, lines.lines, strict=True)

    whole = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    assert found == [(number, line) for number, line in enumerate(whole, start=1) if line]
    assert splitter.failure is None


def test_a_line_above_the_limit_ends_the_input() -> None:
    for data in (b"1\n\n" + b"x" * (EVENT_SIZE_BYTES_MAX + 1), b"1\n\n" + b"x" * (EVENT_SIZE_BYTES_MAX + 1) + b"\n4"):
        splitter = LineSplitter()
        assert splitter.feed(data).lines == [b"1"]
        assert splitter.failure is not None
        assert splitter.failure.number == 3
        assert splitter.feed(b"5\n").lines == []


def test_the_largest_line_is_one() -> None:
    splitter = LineSplitter()

    assert splitter.feed(b"x" * EVENT_SIZE_BYTES_MAX + b"\n").numbers == range(1, 2)


def test_lines_after_a_number_and_parts_keep_their_numbers() -> None:
    lines = LineSplitter().feed(b"1\n\n3\n4\n")

    assert lines.after(1).numbers == [3, 4]
    assert lines.after(0) is lines
    assert lines.part(1, 2).lines == [b"3"]
