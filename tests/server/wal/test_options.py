import re
from typing import Any

import pytest

from millrace.model.limits import APPEND_SIZE_BYTES_MAX
from millrace.model.quantities import parse_size
from millrace.server.errors import ConfigurationError
from millrace.server.wal import WalOptions
from millrace.wire.limits import MIB
from millrace.wire.schema.log import LOG_FILE_HEADER_BLOCK_BYTES
from tests.support.tables import table


def test_the_defaults_take_the_largest_append_and_bound_the_log_at_a_gibibyte() -> None:
    options = WalOptions()

    assert options.run_size_bytes_max > APPEND_SIZE_BYTES_MAX
    assert options.file_size_bytes * options.files_max == 1024 * MIB
    assert options.file_room_bytes == options.file_size_bytes - 4096


@table(
    ("values", "named"),
    [
        ({"files_max": 1}, "files_max"),
        ({"spare_files": 0}, "spare_files"),
        ({"spare_files": 16}, "spare_files"),
        ({"spare_files": 5, "spare_files_max": 4}, "spare_files_max"),
        ({"batch_size_bytes_max": 0}, "batch_size_bytes_max"),
        ({"run_size_bytes_max": 0}, "run_size_bytes_max"),
        ({"headroom_bytes": 100}, "headroom_bytes"),
        ({"file_size_bytes": 16 * MIB}, "file_size_bytes"),
        ({"file_size_bytes": 64 * MIB + 1}, "multiple of 4 KiB"),
    ],
)
def test_values_that_contradict_one_another_are_refused_by_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        WalOptions(**values)


def test_the_size_that_a_refusal_names_is_accepted() -> None:
    with pytest.raises(ConfigurationError) as refused:
        WalOptions(file_size_bytes=16 * MIB)
    (least,) = re.findall(r"(\d+ \wiB) or more", str(refused.value))

    WalOptions(file_size_bytes=parse_size(least))
    with pytest.raises(ConfigurationError):
        WalOptions(file_size_bytes=parse_size(least) - LOG_FILE_HEADER_BLOCK_BYTES)


def test_the_interval_between_retries_must_be_positive() -> None:
    with pytest.raises(ConfigurationError, match="retry_interval_s"):
        WalOptions(retry_interval_s=0)
