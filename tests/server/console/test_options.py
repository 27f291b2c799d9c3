"""Settings of feeds are checked when they are made."""

import pytest

from millrace.server.console.options import FeedOptions
from millrace.server.errors import ConfigurationError
from tests.support.tables import table


@table(
    "wrong",
    [
        {"count_max": -1},
        {"window_bytes": 1},
        {"keepalive_s": 0.0},
        {"patience_s": -1.0},
        {"origins": "https://shop.example/"},
        {"origins": "shop.example"},
        {"origins": "https://a.example https://b.example"},
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        FeedOptions(**wrong)  # type: ignore[arg-type]  # whatever is given


def test_origins_are_a_list() -> None:
    assert FeedOptions().origin_list == []
    assert FeedOptions(origins="https://a.example, http://127.0.0.1:8000,null").origin_list == [
        "https://a.example",
        "http://127.0.0.1:8000",
        "null",
    ]
    assert FeedOptions(origins="*").origin_list == ["*"]
