"""The reader of the programs that follow a stream."""

import pytest

import millrace
from applications.following import Follower
from millrace.client.testing import TestServer


class Seen(Follower):
    """Keeps the values."""

    def take(self, event: millrace.Event, came_s: float) -> None:
        del event, came_s


def test_who_waits_for_more_than_a_sealed_stream_has_is_told(millrace_server: TestServer) -> None:
    with millrace.blocking.connect(millrace_server.address) as client:
        client.create_stream("a/b")
        with client.writer("a/b") as writer:
            writer.write_many([b"1", b"2"])
        client.seal_stream("a/b")

    with Seen(millrace_server.address, "a/b") as seen:
        seen.wait_for(2)
        with pytest.raises(SystemExit, match="no more than 2 events of a/b came until its end"):
            seen.wait_for(3)
