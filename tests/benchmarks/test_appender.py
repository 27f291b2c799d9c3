"""The load generators against a real server, for a moment."""

from pathlib import Path

import pytest

from benchmarks.appender import AppenderOptions, AppenderResult
from benchmarks.child import ChildFailedError, measured
from benchmarks.dataset import fill_segment
from benchmarks.reader import ReaderOptions, ReaderResult
from benchmarks.server import millrace_server
from loadtests.protocol import ProtocolClient


@pytest.mark.slow
def test_what_the_generators_count_is_what_the_server_has(tmp_path: Path) -> None:
    with millrace_server(tmp_path) as server:
        options = AppenderOptions(
            address=server.address,
            connections=2,
            outstanding=8,
            payload_size=1000,
            duration_s=0.3,
            warm_up_s=0.0,
            segment_prefix="raw/test",
        )
        with server.usage() as usage:
            appended = measured("appender", options, AppenderResult)
        with ProtocolClient(server.address) as client:
            lengths = [client.segment_info(f"raw/test-{index}").length for index in range(2)]
        segment_id = fill_segment(server, "raw/history", 3 << 20)
        segments = [(segment_id, 3 << 20)]
        read = measured("reader", ReaderOptions(address=server.address, segments=segments, at_once=1), ReaderResult)

    # Beside what was measured, the server has what was outstanding at the end.
    assert 0 < appended.appends * 1000 <= sum(lengths) <= (appended.appends + 2 * 8) * 1000
    assert usage.appends * 1000 == sum(lengths)
    assert usage.syncs > 0
    assert appended.p50_s > 0
    assert read.size_bytes == 3 << 20


@pytest.mark.slow
def test_a_generator_that_fails_says_why() -> None:
    with pytest.raises(ChildFailedError, match="refused"):
        measured("reader", ReaderOptions(address="127.0.0.1:1", segments=[(1, 1)], at_once=1), ReaderResult)
