"""Token files."""

import pytest

from millrace.model.token_file import parse_token
from tests.support.tables import table


@table("content", [b"s3cret", b"s3cret\n", b"s3cret\r\n", b"  s3cret \n\n", b"\xef\xbb\xbfs3cret\r\n"])
def test_the_token_is_the_line_without_surrounding_white_space(content: bytes) -> None:
    assert parse_token(content) == "s3cret"


@table(
    ("content", "problem"),
    [
        (b"", "holds no token"),
        (b" \n", "holds no token"),
        (b"s3cret\ns4cret\n", "several lines"),
        (b"s3cret\xff", "not UTF-8"),
    ],
)
def test_other_content_is_refused_and_not_shown(content: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        parse_token(content)
    assert "s3cret" not in str(caught.value)
