import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from urllib.request import urlopen

import pytest

import millrace
from millrace.client.testing import PROGRAM, SETTINGS_SMALL, TestServer, server

NOT_LOADED = {
    "duckdb", "h11", "http.server", "lz4", "millrace.cli", "millrace.client", "millrace.server.console.site",
    "opentelemetry", "pandas", "polars", "prometheus_client", "pyarrow", "pyspark", "rich", "typer", "unittest",
    "wsgiref", "zstandard",
}  # fmt: skip
"""What a server without a console is ready without: modules and packages that other programs or later requests need."""
LOOKED_AT_MAX = 20_000
"""So many objects the collector may look at before a server is ready: all of what it makes itself, and of the 70,000 of
its modules none."""
WATCH = """
import gc, sys

def told(phase, info):
    if phase == "start":
        count = sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1))
        sys.stderr.write(f"looked at: {count}\\n")

gc.callbacks.append(told)
"""
"""Tells of each look for garbage, at how many objects."""


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


@pytest.mark.slow
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


@pytest.fixture(scope="module")
def told_at_start(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a server says of its modules and of its garbage collector until it is ready."""
    folder = tmp_path_factory.mktemp("server")
    told = folder / "told.txt"
    with (
        told.open("w") as file,
        subprocess.Popen(
            [sys.executable, "-X", "importtime", "-c", WATCH + PROGRAM, str(folder / "data")],
            stdout=subprocess.PIPE, stderr=file, text=True, env={**os.environ, **SETTINGS_SMALL},
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        assert "address" in process.stdout.readline()
        process.kill()
    return told.read_text()


@pytest.mark.slow
def test_a_server_is_ready_without_what_only_others_need(told_at_start: str) -> None:
    """Issue 12, 5: it is ready in 0.5 s, of which most is spent with loading modules."""
    loaded = {line.rpartition("|")[2].strip() for line in told_at_start.splitlines() if "import time:" in line}
    packages = {".".join(name.split(".")[:end]) for name in loaded for end in range(1, name.count(".") + 2)}

    assert "millrace.server.app" in loaded
    assert packages & NOT_LOADED == set()


@pytest.mark.slow
def test_no_garbage_is_looked_for_in_the_modules_of_a_server(told_at_start: str) -> None:
    looked_at = [int(count) for count in re.findall(r"looked at: (\d+)", told_at_start)]

    assert looked_at
    assert max(looked_at) < LOOKED_AT_MAX


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
