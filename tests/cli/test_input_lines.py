from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE

from hypothesis import assume, given
from hypothesis import strategies as st

from millrace.cli.input_lines import LineSplitter, is_wide
from millrace.model.limits import EVENT_SIZE_BYTES_MAX
from tests.support.tables import table


@given(st.binary(max_size=60).map(lambda data: data.replace(b"\x00", b"\n")), st.lists(st.integers(1, 9), min_size=1))
def test_lines_and_their_numbers_are_those_of_the_whole_input(data: bytes, sizes: list[int]) -> None:
    assume(not is_wide(data))
    splitter = LineSplitter()
    found: list[tuple[int, bytes]] = []
    rest = data
    while rest:
        size = sizes[len(found) % len(sizes)]
        lines = splitter.feed(rest[:size]).written()
        found += zip(lines.numbers, lines.lines, strict=True)
        rest = rest[size:]
    lines = splitter.feed(b"").written()
    found += zip(lines.numbers, lines.lines, strict=True)

    whole = [line.removesuffix(b"\r") for line in data.removeprefix(BOM_UTF8).split(b"\n")]
    assert found == [(number, line) for number, line in enumerate(whole, start=1) if line]
    assert splitter.failure is None


def test_a_byte_order_mark_is_not_part_of_the_first_line() -> None:
    """Behaviour 107: it may arrive in pieces. Later in the input, the same bytes are a character."""
    splitter = LineSplitter()
    for piece in (b"\xef", b"\xbb", b"\xbf1"):
        assert splitter.feed(piece).lines == []

    assert splitter.feed(b"\n" + BOM_UTF8 + b"2\n").lines == [b"1", BOM_UTF8 + b"2"]


@table("text", ["id,name\r\n1,Ada\r\n", "\nid\n", "\r\nid\n", "\n\n\n", "Ж\nы\n", "京\r\n二\r\n", "id"])
@table("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
@table("size", [2, 100])
def test_utf_16_is_refused(text: str, encoding: str, size: int) -> None:
    """Behaviour 107: with or without a byte order mark, in pieces, and if the last character is not whole."""
    data = text.encode(encoding)
    for content in (data, data[:-1]):
        splitter = LineSplitter()
        pieces = [content[at : at + size] for at in range(0, len(content), size)]

        assert [line for piece in (*pieces, b"") for line in splitter.feed(piece).written().lines] == []
        assert "line 1 is UTF-16 or UTF-32" in str(splitter.failure)


@table("mark", [BOM_UTF16_LE, BOM_UTF16_BE, BOM_UTF32_LE, BOM_UTF32_BE])
def test_a_byte_order_mark_alone_is_refused(mark: bytes) -> None:
    splitter = LineSplitter()

    assert [*splitter.feed(mark).lines, *splitter.feed(b"").lines] == []
    assert "line 1 is UTF-16 or UTF-32" in str(splitter.failure)


def test_lines_with_some_zero_bytes_are_not_taken_for_utf_16() -> None:
    for data in (b"", b"\0", b"a\0bc", b"a\0bc\nd", b"\0\0\0", b"ab"):
        assert not is_wide(data)


def test_empty_first_lines_are_counted() -> None:
    splitter = LineSplitter()

    lines = [splitter.feed(piece).written() for piece in (b"\r", b"\n", b"\n", b"three", b"")]
    assert [(list(each.numbers), each.lines) for each in lines if each.lines] == [([3], [b"three"])]


def test_a_typed_line_does_not_wait_for_the_next_one() -> None:
    assert LineSplitter().feed(b"one\n").lines == [b"one"]


def test_a_line_above_the_limit_ends_the_input() -> None:
    for data in (b"1\n\n" + b"x" * (EVENT_SIZE_BYTES_MAX + 1), b"1\n\n" + b"x" * (EVENT_SIZE_BYTES_MAX + 1) + b"\n4"):
        splitter = LineSplitter()
        assert splitter.feed(data).written().lines == [b"1"]
        assert splitter.failure is not None
        assert splitter.failure.number == 3
        assert splitter.feed(b"5\n").lines == []


def test_the_largest_line_is_one() -> None:
    splitter = LineSplitter()

    assert splitter.feed(b"x" * EVENT_SIZE_BYTES_MAX + b"\n").numbers == range(1, 2)


def test_lines_after_a_number_and_parts_keep_their_numbers() -> None:
    lines = LineSplitter().feed(b"1\n\n3\n4\n").written()

    assert lines.after(1).numbers == [3, 4]
    assert lines.after(0) is lines
    assert lines.part(1, 2).lines == [b"3"]
