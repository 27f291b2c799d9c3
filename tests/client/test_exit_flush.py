"""Programs that end without closing their writers. Behaviour 98: no event is lost without a log line that counts it."""

import asyncio
import subprocess
import sys
from functools import partial

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.exit_flush import UnclosedWriter, WriterBacklog, _report
from millrace.client.testing import TestServer
from millrace.client.transport.fork_guard import ForkGuard

UNHANDLED = """
import multiprocessing, os, sys
from millrace import blocking

def child():  # which multiprocessing forks, and ends without `atexit`
    client = blocking.connect({address!r})
    writer = client.writer({name!r})
    for number in range(100):
        writer.write(b"child")

def main():  # after which no name holds the writers
    clients = [blocking.connect({address!r}) for _ in range(2)]
    clients[0].create_stream({name!r})
    clients[0].create_stream({name!r} + "-bytes")
    for client in clients:
        writer = client.writer({name!r})
        for number in range(500):
            writer.write(b"parent")
    clients[0].byte_writer({name!r} + "-bytes").write(b"0123456789")
    if os.fork() == 0:
        sys.exit()  # not with the writers of its parent
    os.wait()
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    raise ValueError("not handled")

main()
"""

CHILD_WITH_THREAD = """
import multiprocessing, sys, threading
from millrace import blocking

def child():
    client = blocking.connect({address!r})
    client.create_stream({name!r})
    writer = client.writer({name!r})
    def write():
        for number in range(50):
            writer.write(b"x").result()
        writer.write(b"last")
    threading.Thread(target=write).start()

if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""

STOPPED_SERVER = """
import os, signal
from millrace import blocking
from millrace.client import exit_flush
exit_flush.FLUSH_TIMEOUT_S = 0.05
client = blocking.connect({address!r})
client.create_stream({name!r})
writer = client.writer({name!r})
os.kill({pid}, signal.SIGSTOP)
writer.write(b"x" * (9 << 20))
for _ in range(20):
    writer.write(b"x")
"""

ENDED_LOOP = """
import asyncio, os, signal
import millrace

async def main():
    client = await millrace.connect({address!r})
    await client.create_stream({name!r})
    writer = client.writer({name!r})
    await writer.open()
    os.kill({pid}, signal.SIGSTOP)
    for _ in range(30):
        writer.write(b"x")

asyncio.run(main())
"""


def run(program: str, server: TestServer, name: str) -> "subprocess.CompletedProcess[str]":
    text = program.format(address=server.address, name=name, pid=server.pid)
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)


def test_what_was_written_is_stored_when_the_program_ends(server: TestServer, name: str) -> None:
    """By an unhandled error; from several clients, and in a child of `multiprocessing`. A forked child does nothing."""
    ended = run(UNHANDLED, server, name)
    assert ended.returncode == 1
    assert ended.stderr.strip().splitlines()[-1] == "ValueError: not handled", ended.stderr
    with millrace.blocking.connect(server.address) as client:
        with client.reader(name, end=millrace.TAIL) as reader:
            values = [event.value for event in reader]
        assert (values.count(b"parent"), values.count(b"child")) == (1000, 100)
        assert client.byte_reader(f"{name}-bytes").read() == b"0123456789"


def test_a_child_ends_after_its_last_thread(server: TestServer, name: str) -> None:
    """A child of `multiprocessing` calls its finalizers before: the thread still writes then."""
    ended = run(CHILD_WITH_THREAD, server, name)
    assert (ended.returncode, ended.stderr) == (0, "")
    with millrace.blocking.connect(server.address) as client, client.reader(name, end=millrace.TAIL) as reader:
        assert [event.value for event in reader] == [b"x"] * 50 + [b"last"]


@pytest.mark.parametrize(("program", "count"), [(STOPPED_SERVER, 21), (ENDED_LOOP, 30)])
def test_what_cannot_be_stored_is_counted_on_one_line(
    millrace_server: TestServer, name: str, program: str, count: int
) -> None:
    ended = run(program, millrace_server, name)
    millrace_server.kill()
    assert ended.returncode == 0
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"writes not acknowledged at exit events={count} bytes=0 streams={name}:")


@pytest.mark.asyncio
@pytest.mark.parametrize("is_forked", [False, True])
async def test_a_writer_that_is_collected_open_leaves_a_line(
    caplog: pytest.LogCaptureFixture, *, is_forked: bool
) -> None:
    guard = ForkGuard()
    for stream, size_bytes in (("a/b", 3), ("a/none", 0)):
        writer = UnclosedWriter(
            stream, guard, unstored=partial(WriterBacklog, bytes=size_bytes), settle=asyncio.Event().wait
        )
        guard.forked = is_forked
        del writer
    expected = ["writer was never closed stream=a/b unacknowledged_events=0 unacknowledged_bytes=3"]
    assert caplog.messages == ([] if is_forked else expected)


@pytest.mark.asyncio
async def test_a_writer_that_was_closed_counts_nothing(
    client: Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await client.create_stream(name)
    writer = client.writer(name)
    await writer.open()
    at_exit = writer._delivery.at_exit
    assert at_exit is not None
    future = writer.write(b"x")
    assert at_exit.unstored() == WriterBacklog(events=1)
    await at_exit.settle()
    assert at_exit.unstored() == WriterBacklog()
    assert future.done()
    await writer.close()
    _report([at_exit])
    assert "at exit" not in caplog.text
