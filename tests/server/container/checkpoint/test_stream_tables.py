import json

from millrace.server.container.checkpoint.rows import take_rows
from millrace.server.container.checkpoint.stream_tables import STREAMS
from tests.server.container.histories import history


def test_key_ranges_keep_all_64_bits() -> None:
    past = history(("create_stream", 0, 2**16))
    rows = take_rows(past.state)
    ((*_, parts, _epochs),) = rows.added[STREAMS.table]
    assert [part[1:3] for part in json.loads(parts)] == [
        ["0000000000000000", "8000000000000000"],
        ["8000000000000001", "ffffffffffffffff"],
    ]
