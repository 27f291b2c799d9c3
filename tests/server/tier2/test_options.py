import pytest

from millrace.server.errors import ConfigurationError
from millrace.server.tier2 import Tier2Options
from tests.support.tables import table


@table(
    ("option", "value"),
    [("page_size_bytes", 511), ("page_size_bytes", 1 << 25), ("threads", 0)],
)
def test_an_option_that_cannot_work_is_refused_by_name(option: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=option):
        Tier2Options(**{option: value})  # type: ignore[arg-type]  # mypy sees one type for all options
