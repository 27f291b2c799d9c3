import pytest

from millrace.cli.line_json import WideNumber, json_text, parse_json, utf8
from tests.support.tables import table


@table(
    ("line", "problem"),
    [
        (b"{", "is not JSON: "),
        (b"{} {}", "is not JSON: Extra data"),
        (b'{"a": NaN}', "is not JSON: NaN is not a JSON number"),
        (b'{"a": "\xff"}', "is not UTF-8: 0xff at byte 8"),
        (b'{"a": "\xed\xa0\x80"}', "is not UTF-8: 0xed"),
        ('{"a": 1}'.encode("utf-16-le"), "is not JSON"),
        (b"[" * 200_000 + b"]" * 200_000, "is JSON that is nested too deeply"),
    ],
)
def test_a_line_that_is_not_json_is_refused_by_one_sentence(line: bytes, problem: str) -> None:
    """Behaviour 107."""
    with pytest.raises(ValueError, match=f"^{problem}"):
        parse_json(line)


@table("number", ["9" * 5_000, "-" + "9" * 5_000, "1e400"])
def test_a_number_of_any_size_is_kept_as_it_is_written(number: str) -> None:
    """Behaviour 107."""
    content = parse_json(b'{"n": %s}' % number.encode())

    assert content == {"n": WideNumber(number)}
    assert repr(content) == f"{{'n': {number}}}"
    assert json_text(content["n"], "field") == number
    with pytest.raises(ValueError, match="has a field with a number inside that is out of range"):
        json_text(content, "field")


def test_half_a_surrogate_pair_is_named() -> None:
    """Behaviour 107."""
    with pytest.raises(ValueError, match=r"^has a key with half a surrogate pair: \\ud83d$"):
        utf8(parse_json(rb'"a\ud83d"'), "key")
    assert utf8(parse_json(rb'"\ud83d\ude00"'), "key") == "\U0001f600".encode()
