import pytest

from millrace.server.cache import CacheOptions
from millrace.server.errors import ConfigurationError
from tests.support.tables import table


@table(
    ("option", "value"),
    [
        ("budget_bytes", 4 * (1 << 20) - 1),
        ("page_size_bytes", 4095),
        ("protected_share", 1.0),
        ("read_ahead_bytes", -1),
        ("read_ahead_share", 1.1),
        ("fetches_max", 0),
        ("readers_max", 0),
    ],
)
def test_an_option_that_cannot_work_is_refused_by_name(option: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=option):
        CacheOptions(**{option: value})  # type: ignore[arg-type]  # mypy sees one type for all options
