import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import millrace
from millrace.client.testing import TestServer
from millrace.client.testing import server as server_of
from millrace.server.app import Server
from millrace.server.wal import WalOptions
from millrace.wire.limits import KIB, MIB
from tests.cli.conftest import Outcome, Run
from tests.support.files import MemoryFileSystem
from tests.support.servers import server_options
from tests.support.waiting import until

PROGRAM = [sys.executable, "-c", "import sys; from millrace.cli.main import main; sys.exit(main())"]

Write = Callable[..., Outcome]


@pytest.fixture
def write(ask: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Create a stream and write some input to it."""

    def write_input(stream: str, data: bytes, *options: str) -> Outcome:
        path = tmp_path / "input"
        path.write_bytes(data)
        ask("stream", "create", stream, "--segments", 3)
        with path.open() as file:
            monkeypatch.setattr(sys, "stdin", file)
            return ask("write", stream, *options)

    return write_input


def test_each_line_becomes_an_event(write: Write, ask: Run) -> None:
    outcome = write("events/lines", b"one\r\ntwo\n\nthree", "--key", "k")

    assert outcome.code == 0
    assert "wrote 3 events" in outcome.err
    assert ask("read", "events/lines").out == "one\ntwo\nthree\n"
    assert ask("read", "events/lines", "--keys", "--limit", 1).out == "k\tone\n"


def test_events_of_a_key_are_read_in_the_order_written(write: Write, ask: Run) -> None:
    """The key is a column of CSV, named by the header."""
    lines = [f"{number},till-{number % 7}" for number in range(20_000)]
    write("events/csv", "\n".join(["amount,till", *lines]).encode(), "--key-field", "till")

    events = [json.loads(line) for line in ask("read", "events/csv", "--json").lines]

    assert sorted(event["value"] for event in events) == sorted(lines)
    for key in {event["key"] for event in events}:
        of_key = [event["value"] for event in events if event["key"] == key]
        assert of_key == [line for line in lines if line.endswith(f",{key}")]


def test_a_field_of_json_lines_is_the_key(write: Write, ask: Run) -> None:
    write("events/json", b'{"k": "a", "n": 1}\n{"k": "b", "n": 2}\n', "--key-field", "k")

    assert sorted(ask("read", "events/json", "--keys").lines) == ['a\t{"k": "a", "n": 1}', 'b\t{"k": "b", "n": 2}']


LINES = [b"" if number % 50 == 7 else b'{"n": %d, "k": "k%d"}' % (number, number % 13) for number in range(1, 3001)]


@pytest.mark.parametrize("options", [(), ("--key-field", "k"), ("--key", "k")])
def test_a_named_writer_resumes_an_input_by_line_number(write: Write, ask: Run, options: tuple[str, ...]) -> None:
    """Behaviour 66: empty lines count, and have no event."""
    stream = f"events/resumed{'-'.join(options)}"
    options = (*options, "--writer-id", f"{stream}:w")
    write(stream, b"\n".join(LINES[:2000]), *options)
    outcome = write(stream, b"\n".join(LINES), *options)
    again = write(stream, b"\n".join(LINES), *options)

    assert "wrote 980 events" in outcome.err
    assert "after line 2,000, through which all was stored" in outcome.err
    assert "wrote 0 events" in again.err
    numbers = [json.loads(line)["n"] for line in ask("read", stream).lines]
    assert sorted(numbers) == [number for number, line in enumerate(LINES, start=1) if line]


def test_the_header_is_line_1_of_a_resumed_input(write: Write, ask: Run) -> None:
    lines = [b"amount,till", *(b"%d,till-%d" % (number, number % 7) for number in range(500))]
    options = ("--key-field", "till", "--writer-id", "events/header:w")
    write("events/header", b"\n".join(lines[:300]), *options)
    write("events/header", b"\n".join(lines), *options)

    assert sorted(ask("read", "events/header").lines) == sorted(line.decode() for line in lines[1:])


def test_a_line_without_the_key_is_wrong_usage_and_named(write: Write) -> None:
    outcome = write("events/wrong", b'{"k": "a"}\n\n{"x": "b"}\n', "--key-field", "k")

    assert outcome.code == 2
    assert "line 3" in outcome.err


def test_a_value_that_is_no_text_is_given_in_base_64(write: Write, ask: Run) -> None:
    write("events/binary", b"\xff\xfe\n")

    assert json.loads(ask("read", "events/binary", "--json").out)["value_base64"] == "//4="


def test_headers_are_shown_as_text_where_they_are_text(running: TestServer, ask: Run) -> None:
    with millrace.blocking.connect(running.address) as client:
        client.create_stream("events/headers")
        with client.writer("events/headers") as writer:
            writer.write(b"with", headers={"trace": "ä1".encode(), "raw": b"\xff\xfe"})
            writer.write(b"without")

    events = [json.loads(line) for line in ask("read", "events/headers", "--json").lines]

    assert [event["headers"] for event in events] == [{"trace": "ä1", "raw": {"base64": "//4="}}, {}]


def test_lines_far_longer_than_a_read_are_whole_events(write: Write, ask: Run) -> None:
    line = b"x" * 5_000_000
    write("events/long", line + b"\nshort\n", "--key", "k")

    assert ask("read", "events/long").out.encode() == line + b"\nshort\n"


def test_a_line_above_the_limit_of_an_event_is_refused(write: Write) -> None:
    outcome = write("events/too-long", b"x" * (9 << 20))

    assert outcome.code == 2


def test_reading_resumes_from_a_cut(write: Write, ask: Run) -> None:
    write("events/cuts", b"1\n2\n3\n", "--key", "k")
    first, second = (json.loads(line) for line in ask("read", "events/cuts", "--json", "--limit", 2).lines)
    head = ask("stream", "info", "events/cuts", "--json").json["head"]
    cut = head.replace(f"{second['segment']}:0.0", f"{second['segment']}:{second['offset']}.{second['index']}")

    assert first["value"] == "1"
    assert ask("read", "events/cuts", "--from", cut).out == "2\n3\n"
    assert ask("read", "events/cuts", "--to", cut).out == "1\n"
    assert ask("read", "events/cuts", "--from", "tail").out == ""


def test_reading_from_a_place_after_the_end_is_wrong_usage(write: Write, ask: Run) -> None:
    """Behaviour 27."""
    write("events/reversed", b"1\n2\n")

    refused = ask("read", "events/reversed", "--from", "tail", "--to", "head")

    assert (refused.code, refused.out) == (2, "")
    assert "is after the end" in refused.err


def test_several_streams_are_read_by_name_pattern_and_slice(write: Write, ask: Run) -> None:
    """Behaviour 72, for keys."""
    for name, key in (("many/a", "one"), ("many/b", "two")):
        write(name, f"{name} 1\n{name} 2\n".encode(), "--key", key)

    assert sorted(ask("read", "many/a", "many/b").lines) == [f"many/{name} {n}" for name in "ab" for n in (1, 2)]
    assert min(ask("read", "many/*", "--names").lines) == "many/a\tmany/a 1"
    assert ask("read", "many/*", "--key", "two").lines == ["many/b 1", "many/b 2"]
    assert ask("read", "many/a@head..tail#one").lines == ["many/a 1", "many/a 2"]
    assert ask("read", "many/a@head..tail#two").lines == []
    assert ask("read", "many/a", "--key", "one", "--limit", 1).lines == ["many/a 1"]
    events = [json.loads(line) for line in ask("read", "many/a@tail..tail", "many/b", "--json").lines]
    assert [(event["stream"], event["value"]) for event in events] == [("many/b", "many/b 1"), ("many/b", "many/b 2")]
    assert ask("read", "many/a@head..tail", "--key", "one").code == 2


def test_the_tail_of_a_sealed_stream_ends(write: Write, ask: Run) -> None:
    write("events/sealed", b"1\n2\n", "--key", "k")
    ask("stream", "seal", "events/sealed")

    assert ask("tail", "events/sealed", "--from", "head").out == "1\n2\n"


def test_writing_to_a_missing_stream_is_refused(write: Write, ask: Run) -> None:
    assert ask("write", "events/missing").code == 1


@pytest.mark.slow
def test_a_pipe_is_written_and_tailed_as_lines_come(running: TestServer, ask: Run) -> None:
    """Ctrl-C ends a tail without noise and with exit code 0."""
    ask("stream", "create", "events/pipe")
    address = ["--address", running.address]
    tail = subprocess.Popen(
        [*PROGRAM, "tail", "events/pipe", "--from", "head", *address], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    writer = subprocess.Popen(
        [*PROGRAM, "write", "events/pipe", *address], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert writer.stdin is not None
    assert tail.stdout is not None

    for line in (b"first\n", b"second\n"):
        writer.stdin.write(line)
        writer.stdin.flush()
        assert tail.stdout.readline() == line

    writer.stdin.close()
    assert writer.wait(10) == 0
    tail.send_signal(signal.SIGINT)
    assert tail.wait(10) == 0
    assert tail.stderr is not None
    assert tail.stderr.read() == b""
    for process in (writer, tail):
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.mark.slow
def test_a_command_that_is_killed_is_given_its_input_again(running: TestServer, ask: Run, tmp_path: Path) -> None:
    """Behaviour 66."""
    ask("stream", "create", "events/killed", "--segments", 3)
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join(b'{"n": %d, "k": "k%d"}' % (number, number % 13) for number in range(300_000)))
    arguments = ["write", "events/killed", "--key-field", "k", "--writer-id", "killed", "--address", running.address]
    for delay_s in (1.0, 1.5, 2.0, None):
        with path.open("rb") as lines, subprocess.Popen([*PROGRAM, *arguments], stdin=lines) as process:
            try:
                process.wait(delay_s)
            except subprocess.TimeoutExpired:
                process.kill()
    assert process.returncode == 0
    numbers = [json.loads(line)["n"] for line in ask("read", "events/killed").lines]
    assert sorted(numbers) == list(range(300_000))


@pytest.mark.slow
def test_a_tail_outlives_an_outage_and_says_what_it_waits_for() -> None:
    """Behaviour 89."""
    with server_of() as running, millrace.blocking.connect(running.address) as client:
        client.create_stream("events/outage")
        arguments = ["tail", "events/outage", "--from", "head", "--address", running.address]
        tail = subprocess.Popen([*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert tail.stdout is not None
        assert tail.stderr is not None
        with tail, client.writer("events/outage", writer_id="w") as writer:
            writer.write(b"before")
            assert tail.stdout.readline() == b"before\n"
            running.kill()
            assert tail.stderr.readline().startswith(
                b"waiting for the server, unreachable: no server could be reached at"
            )
            running.start()
            writer.write(b"after")
            assert tail.stdout.readline() == b"after\n"
            tail.send_signal(signal.SIGINT)
            assert tail.wait(60) == 0
            assert tail.stderr.read() == b"waiting is over\n"


@pytest.mark.slow
def test_a_tail_with_a_time_limit_ends_with_the_cut_to_resume_from() -> None:
    with server_of() as running:
        with millrace.blocking.connect(running.address) as client:
            client.create_stream("events/limit")
            with client.writer("events/limit") as writer:
                writer.write(b"before")
        arguments = ["tail", "events/limit", "--from", "head", "--timeout", "0.1s", "--address", running.address]
        tail = subprocess.Popen([*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert tail.stdout is not None
        assert tail.stderr is not None
        with tail:
            assert tail.stdout.readline() == b"before\n"
            running.kill()
            assert tail.wait(60) == 3
            assert b"given up after 0.1 s" in (said := tail.stderr.read())
            assert b"; resume at events/limit@" in said


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_full_disk_is_named_while_lines_wait_to_be_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Behaviour 89."""
    files = MemoryFileSystem(capacity_bytes=7 * MIB)
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    wal = WalOptions(
        file_size_bytes=3 * MIB,
        files_max=8,
        batch_size_bytes_max=2 * MIB,
        run_size_bytes_max=2 * MIB,
        headroom_bytes=8 * KIB,
        retry_interval_s=0.05,
    )
    path = tmp_path / "input"
    path.write_bytes((b"x" * 9_999 + b"\n") * 800)
    said = ""

    def is_said() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return "waiting for the server, no space: " in said

    async with Server(server_options(tmp_path, wal=wal), files=files) as running:
        async with millrace.connect(running.address) as client:
            await client.create_stream("events/full")
        with path.open() as file:
            monkeypatch.setattr(sys, "stdin", file)
            arguments = ("write", "events/full", "--address", running.address)
            writing = asyncio.create_task(asyncio.to_thread(run, *arguments))
            await until(is_said)
            assert not writing.done()
            files.capacity_bytes = 64 * MIB
            outcome = await writing
    assert outcome.code == 0
    assert "waiting is over" in said + outcome.err
    assert "wrote 800 events" in outcome.err
