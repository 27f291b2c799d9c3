import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from urllib.request import urlopen

import pytest

import millrace
from millrace.client.testing import TestServer, server


def test_what_was_acknowledged_survives_a_kill(millrace_server: TestServer) -> None:
    """Behaviour 5: SIGKILL right after an ack: the event is there."""
    with millrace.blocking.connect(millrace_server.address) as client:
        client.segments.create("a/b")
        client.segments.append("a/b", b"durable")
        millrace_server.kill()
        assert not millrace_server.running
        address = millrace_server.address
        millrace_server.start()
        assert millrace_server.address == address
        assert client.segments.read("a/b", 0).data == b"durable"


def test_a_fresh_server_takes_little_disk(millrace_server: TestServer) -> None:
    """Allocated blocks: its log files are holes, each large enough for the largest append."""
    with millrace.blocking.connect(millrace_server.address) as client:
        client.create_stream("a/b")
        files = [path.stat() for path in millrace_server.folder.rglob("*") if path.is_file()]
        assert sum(file.st_blocks * 512 for file in files) < 1_000_000
        with client.writer("a/b") as writer:
            writer.write(bytes(8 << 20))


def test_a_server_stops_in_order(millrace_server: TestServer) -> None:
    """Behaviour 48."""
    with millrace.blocking.connect(millrace_server.address) as client:
        client.segments.create("a/b")
    assert millrace_server.stop() == 0
    with pytest.raises(RuntimeError):
        _ = millrace_server.pid


def test_a_server_that_another_thread_starts_is_stopped_after_it(millrace_server: TestServer) -> None:
    millrace_server.kill()
    with ThreadPoolExecutor() as threads:
        starting = threads.submit(millrace_server.start)
        while not millrace_server.running:
            assert not starting.done()
        assert millrace_server.stop() == 0
        starting.result()
    assert not millrace_server.running


def test_a_console_is_there_where_it_is_asked_for_and_stays_where_it_is(millrace_server: TestServer) -> None:
    assert millrace_server.console_address == ""
    with server(console="127.0.0.1:0") as running:
        address = running.console_address
        for _ in range(2):
            with urlopen(f"http://{address}/health", timeout=60) as answer:
                assert answer.status == 200
            running.restart()
        assert running.console_address == address


def test_a_folder_in_use_is_an_error(millrace_server: TestServer) -> None:
    """Behaviour 47."""
    with pytest.raises(RuntimeError, match="ended before"), millrace.testing.server(millrace_server.folder):
        pass


@pytest.mark.slow
def test_importing_the_package_is_quick_and_loads_no_part() -> None:
    program = (
        "import sys, millrace;"
        "assert not [name for name in sys.modules if name.startswith(('millrace.', 'numpy', 'pyspark', 'asyncio'))];"
        "millrace.connect, millrace.HEAD, millrace.SegmentExistsError;"
        "millrace.blocking.connect, millrace.testing.server;"
        "assert not [name for name in sys.modules if name.startswith(('millrace.server', 'pyspark', 'pyarrow'))]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_public_name_can_be_had() -> None:
    for name in millrace.__all__:
        if name != "spark_source":
            assert getattr(millrace, name) is not None
    assert set(millrace.__all__) <= set(dir(millrace))
    with pytest.raises(AttributeError):
        _ = millrace.nothing_of_that_name
