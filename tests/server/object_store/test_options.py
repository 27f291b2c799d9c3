"""What may be set about the object store."""

import pytest

from millrace.server.errors import SettingError
from millrace.server.object_store import ObjectStoreOptions
from tests.support.tables import table


@table("lease_s", [0.9, 600.1, float("nan")])
def test_a_lease_is_neither_too_short_nor_too_long(lease_s: float) -> None:
    assert [ObjectStoreOptions(lease_s=each).lease_s for each in (1.0, 600.0)] == [1.0, 600.0]
    with pytest.raises(SettingError, match=r"lease_s is .*; it must be 1 s to 10 min"):
        ObjectStoreOptions(lease_s=lease_s)
