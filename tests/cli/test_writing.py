import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import zlib
from pathlib import Path

import pytest

import millrace
from millrace.client.testing import TestServer
from millrace.client.testing import server as server_of
from millrace.server.app import Server
from millrace.server.host.room import RESERVE_BYTES_MIN
from millrace.server.wal import WalOptions
from millrace.wire.limits import KIB, MIB
from tests.cli.conftest import PROGRAM, GiveInput, Run, Write
from tests.support.files import MemoryFileSystem
from tests.support.servers import server_options
from tests.support.waiting import until


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


def test_lines_far_longer_than_a_read_are_whole_events(write: Write, ask: Run) -> None:
    line = b"x" * 5_000_000
    write("events/long", line + b"\nshort\n", "--key", "k")

    assert ask("read", "events/long").out.encode() == line + b"\nshort\n"


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
@pytest.mark.asyncio
async def test_a_full_disk_is_named_while_lines_wait_to_be_written(
    run: Run, tmp_path: Path, give_input: GiveInput, capsys: pytest.CaptureFixture[str]
) -> None:
    """Behaviour 89."""
    files = MemoryFileSystem()
    (tmp_path / "containers" / "0000").mkdir(parents=True)
    wal = WalOptions(
        file_size_bytes=3 * MIB,
        files_max=8,
        batch_size_bytes_max=2 * MIB,
        run_size_bytes_max=2 * MIB,
        headroom_bytes=8 * KIB,
        retry_interval_s=0.05,
    )
    give_input((b"x" * 9_999 + b"\n") * 800)
    said = ""

    def is_said() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return "waiting for the server, no space: " in said

    async with Server(server_options(tmp_path, wal=wal), files=files) as running:
        async with millrace.connect(running.address) as client:
            await client.create_stream("events/full")
        files.capacity_bytes = files.used_bytes + RESERVE_BYTES_MIN
        arguments = ("write", "events/full", "--address", running.address)
        writing = asyncio.create_task(asyncio.to_thread(run, *arguments))
        await until(is_said)
        assert not writing.done()
        files.capacity_bytes = 64 * MIB
        outcome = await writing
    assert outcome.code == 0
    assert "waiting is over" in said + outcome.err
    assert "wrote 800 events" in outcome.err


def resumed(said: str, path: Path) -> tuple[bytes, list[str]]:
    """Return the input and the arguments of the command that is said to resume with."""
    (command,) = re.findall(r"to resume[^:]*: (.*)$", said, re.MULTILINE)
    source, _, program = command.rpartition(" | ") if " | " in command else ("cat FILE", "", command.partition(" <")[0])
    data = subprocess.run(["sh", "-c", source.replace("FILE", str(path))], capture_output=True, check=True).stdout
    assert program.startswith("millrace ")
    return data, shlex.split(program)[1:]


def test_a_line_that_is_too_long_is_named_and_those_before_it_are_stored(write: Write, ask: Run) -> None:
    outcome = write("events/too-long", b"one\n\n" + b"x" * (9 << 20) + b"\nfour\n")

    assert outcome.code == 2
    assert "input: line 3 is longer than 8.0 MiB, the maximum of an event" in outcome.err
    assert "1 line is stored in events/too-long; to resume after line 1: tail -n +2 FILE | millrace" in outcome.err
    assert ask("read", "events/too-long").out == "one\n"


@pytest.mark.parametrize("options", [("--key-field", "k"), ("--key-field", "k", "--writer-id", "resumed")])
def test_the_advice_of_how_to_resume_is_right(
    write: Write, run: Run, ask: Run, give_input: GiveInput, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """The rest is stored, once, and the header is given again."""
    stream = f"events/advice-{len(options)}"
    lines = [b"n,k", b"1,a", b"2,b", b"3", b"4,a", b"5,c"]
    outcome = write(stream, b"\n".join(lines), *options)
    assert outcome.code == 2
    assert "line 4 has 1 columns" in outcome.err
    assert f"2 lines are stored in {stream}; " in outcome.err

    path = tmp_path / "mended"
    path.write_bytes(b"\n".join([*lines[:3], b"3,d", *lines[4:]]))
    data, arguments = resumed(outcome.err, path)
    give_input(data)
    assert run(*arguments).code == 0

    assert sorted(ask("read", stream).lines) == ["1,a", "2,b", "3,d", "4,a", "5,c"]


@pytest.mark.parametrize(
    ("data", "options", "keys", "problem"),
    [
        (b"\xef\xbb\xbfid,name\n1,Ada\n2,Bob\n", ("--key-field", "id"), ["1", "2"], ""),
        (b'\xef\xbb\xbf{"id":"a"}\n{"id":"b"}\n', ("--key-field", "id"), ["a", "b"], ""),
        (b'id,text\n1,"two\nlines"\n2,plain\n', ("--key-field", "id"), ["1", "2"], ""),
        (b'id,text\n1,"two\nlines\n2,plain\n', ("--key-field", "id"), [], "input: line 2 has a quoted field"),
        (b'id,text\n1,a\n2,"b\nc"d\n', ("--key-field", "id"), ["1"], "input: line 3 is not CSV: column 2 continues"),
        (b'{"id":"a"}\n{"id":"\\ud800"}\n', ("--key-field", "id"), ["a"], "input: line 2 has a field 'id' with half"),
        (b'{"id":"a","n":%s}\n' % (b"9" * 5_000), ("--key-field", "id"), ["a"], ""),
        ("id,name\r\n1,Ada\r\n".encode("utf-16"), ("--key-field", "id"), [], "input: line 1 is UTF-16"),
        ("one\ntwo\n".encode("utf-16"), ("--key", "k"), [], "input: line 1 is UTF-16"),
        ("\none\n".encode("utf-16"), ("--key", "k"), [], "input: line 1 is UTF-16"),
        ("\none\n".encode("utf-16-le"), ("--key", "k"), [], "input: line 1 is UTF-16"),
        (b'{"value":"a","key":"k"}\n{"value":"b","key":"l","headers":{"%s":""}}\n' % (b"h" * 70_000), ("--json",),
         ["k"], "input: line 2 cannot be written: "),
    ],
)  # fmt: skip
def test_lines_from_elsewhere_are_stored_right_or_refused_by_line(
    write: Write, ask: Run, data: bytes, options: tuple[str, ...], keys: list[str], problem: str
) -> None:
    """Behaviour 107: and the lines before the wrong one are stored."""
    stream = f"elsewhere/{zlib.crc32(data)}"
    outcome = write(stream, data, *options)

    assert outcome.code == (2 if problem else 0)
    assert problem in outcome.err
    assert sorted(json.loads(line)["key"] for line in ask("read", stream, "--json").lines) == keys


def test_a_named_writer_resumes_records_of_several_lines(write: Write, ask: Run) -> None:
    """Behaviour 107: no record is cut where an input is resumed."""
    rows = b"".join(b'%d,"line\n\nend"\n' % number for number in range(40))
    options = ("--key-field", "id", "--writer-id", "elsewhere/resumed:w")
    write("elsewhere/resumed", b'id,"te\nxt"\n' + rows[:281], *options)
    outcome = write("elsewhere/resumed", b'id,"te\nxt"\n' + rows, *options)

    assert outcome.code == 0
    values = [json.loads(line)["value"] for line in ask("read", "elsewhere/resumed", "--json").lines]
    assert sorted(values, key=lambda value: int(value.split(",")[0])) == [f'{n},"line\n\nend"' for n in range(40)]


def test_a_line_without_a_key_and_a_tab_is_named(write: Write) -> None:
    for line, problem in (
        (b"no tab", "line 2 has no tab after its key"),
        (b"\\x\tv", "line 2 '\\\\x' is not a valid escape"),
    ):
        assert problem in write("events/no-tab", b"k\t1\n" + line, "--keys").err
    assert "line 1 is not JSON" in write("events/no-tab", b"{", "--json").err
    assert write("events/no-tab", b"", "--json", "--key", "k").code == 2


def test_a_missing_stream_is_created_where_that_is_asked_for(ask: Run, give_input: GiveInput) -> None:
    give_input(b"1\n2\n")
    refused = ask("write", "events/created")
    assert refused.code == 1
    assert "0 lines are stored in events/created; to resume, give the whole input again: millrace" in refused.err
    assert "created events/created with 1 segment" in ask("write", "events/created", "--create").err
    assert "created" not in ask("write", "events/created", "--create").err.replace("events/created", "")
    assert ask("read", "events/created").lines == ["1", "2"]


def test_without_a_server_nothing_is_stored(run: Run) -> None:
    outcome = run("write", "events/away", "--address", "127.0.0.1:1")

    assert outcome.code == 3
    assert outcome.err.splitlines()[-1] == (
        "0 lines are stored in events/away; to resume, give the whole input again: "
        "millrace write events/away --address 127.0.0.1:1 < FILE"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_ends_with_what_is_stored(running: TestServer, ask: Run, number: signal.Signals, name: str) -> None:
    stream = f"events/stopped-{number}"
    ask("stream", "create", stream)
    arguments = [*PROGRAM, "write", stream, "--address", running.address]
    with (
        subprocess.Popen(arguments, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        millrace.blocking.connect(running.address) as client,
        client.reader(stream) as reader,
    ):
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("one\ntwo\n\nfour\nhalf")
        process.stdin.flush()
        assert [next(reader).value for _ in range(3)] == [b"one", b"two", b"four"]
        process.send_signal(number)
        said = process.stderr.read()

    assert process.returncode == 128 + number
    assert said == (
        f"stopped by {name}: 3 lines are stored in {stream}; to resume after line 4: tail -n +5 FILE | "
        f"millrace write {stream} --address {running.address}\n"
    )


@pytest.mark.slow
def test_a_server_that_goes_leaves_lines_in_doubt_which_are_counted() -> None:
    with server_of() as running, millrace.blocking.connect(running.address) as client:
        client.create_stream("events/gone")
        arguments = [*PROGRAM, "write", "events/gone", "--timeout", "0.1s", "--address", running.address]
        with (
            subprocess.Popen(arguments, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
            client.reader("events/gone") as reader,
        ):
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write("one\n")
            process.stdin.flush()
            assert next(reader).value == b"one"
            running.kill()
            process.stdin.write("two\nthree\n")
            process.stdin.flush()
            said = process.stderr.read()

    assert process.returncode in (1, 3)
    # Whether the answer about the first line had come before the server went is a matter of chance.
    (counts,) = re.findall(
        r"(\d) lines? (?:is|are) stored in events/gone; up to (\d) lines? after line (\d) may be", said
    )
    assert counts in (("1", "2", "1"), ("0", "3", "0"))


@pytest.mark.slow
def test_lines_that_are_typed_are_asked_for(running: TestServer, ask: Run) -> None:
    """On a terminal of its own; Ctrl-D ends."""
    outer, inner = os.openpty()
    arguments = [*PROGRAM, "write", "events/typed", "--create", "--address", running.address]
    with subprocess.Popen(arguments, stdin=inner, stderr=subprocess.PIPE, text=True) as process:
        os.close(inner)
        assert process.stderr is not None
        assert process.stderr.readline() == "created events/typed with 1 segment\n"
        assert process.stderr.readline() == (
            "reading lines from the terminal: each is stored when it is typed; Ctrl-D ends\n"
        )
        os.write(outer, b"typed\n\x04")
        assert process.stderr.readline().startswith("done wrote 1 event (5 B) to events/typed in ")
    os.close(outer)
    assert process.returncode == 0
    assert ask("read", "events/typed").lines == ["typed"]


@pytest.mark.slow
def test_nobody_who_hears_what_is_said_is_no_error(running: TestServer, ask: Run) -> None:
    arguments = [*PROGRAM, "write", "events/unheard", "--create", "--address", running.address]
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stderr=writing) as process:
        os.close(writing)
        process.communicate(b"1\n2\n")
    assert process.returncode == 0
    assert ask("read", "events/unheard").lines == ["1", "2"]
