import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import millrace
from millrace.cli.reading import before
from millrace.client.testing import TestServer
from millrace.client.testing import server as server_of
from tests.cli.conftest import PROGRAM, GiveInput, Run, Write


def test_a_value_that_is_no_text_is_given_in_base_64(write: Write, ask: Run) -> None:
    write("events/binary", b"\xff\xff\n")

    assert json.loads(ask("read", "events/binary", "--json").out)["value_base64"] == "//8="


def test_headers_are_shown_as_text_where_they_are_text(running: TestServer, ask: Run) -> None:
    with millrace.blocking.connect(running.address) as client:
        client.create_stream("events/headers")
        with client.writer("events/headers") as writer:
            writer.write(b"with", headers={"trace": "ä1".encode(), "raw": b"\xff\xfe"})
            writer.write(b"without")

    events = [json.loads(line) for line in ask("read", "events/headers", "--json").lines]

    assert [event["headers"] for event in events] == [{"trace": "ä1", "raw": {"base64": "//4="}}, {}]


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


@contextmanager
def ended(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """End the process with the block, so that a failure does not wait for it."""
    with process:
        try:
            yield
        finally:
            process.kill()


@pytest.mark.slow
def test_a_tail_outlives_an_outage_and_says_what_it_waits_for() -> None:
    """Behaviour 89."""
    with server_of() as running, millrace.blocking.connect(running.address) as client:
        client.create_stream("events/outage")
        arguments = ["tail", "events/outage", "--from", "head", "--address", running.address]
        tail = subprocess.Popen([*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert tail.stdout is not None
        assert tail.stderr is not None
        with ended(tail), client.writer("events/outage", writer_id="w") as writer:
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
        with ended(tail):
            assert tail.stdout.readline() == b"before\n"
            running.kill()
            assert tail.wait(60) == 3
            assert b"given up after 0.1 s" in (said := tail.stderr.read())
            assert b"; resume at events/limit@" in said


def test_a_limit_ends_at_a_place_to_read_on_from(running: TestServer) -> None:
    """Inside of a batch: what is left of it comes first."""
    with millrace.blocking.connect(running.address) as client:
        client.create_stream("events/rest", millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(2)))
        with client.writer("events/rest") as writer:
            for number in range(6):
                writer.write_many([b"%d" % number] * 10, keys=[f"k{number}"] * 10)
        with client.reader("events/rest", end="tail") as reader:
            read = 0
            for batch in reader.arrow_batches():
                part = batch.slice(0, 7)
                read += part.num_rows
                cut = before(reader.position(), batch.slice(7))
                assert client.distance("head", cut).events == read
                read += batch.num_rows - part.num_rows
    assert read == 60


@pytest.mark.slow
def test_nobody_who_reads_the_output_is_no_error(running: TestServer, write: Write) -> None:
    """As with `| head`: exit code 0, and not a word."""
    write("events/head", b"1\n2\n3\n")
    commands = (["read", "events/head"], ["read", "events/head", "--json"], ["stream", "list"])
    processes = []
    for command in (*commands, ["stream", "info", "events/head"]):
        reading, writing = os.pipe()
        os.close(reading)
        arguments = [*PROGRAM, *command, "--address", running.address]
        processes.append(subprocess.Popen(arguments, stdout=writing, stderr=subprocess.PIPE))
        os.close(writing)

    assert [(process.communicate()[1], process.returncode) for process in processes] == [(b"", 0)] * 4


KEYS = ("plain", "a\tb", "two\nlines\r", "back\\slash", "\\t", "", None, "ä")


@pytest.mark.parametrize("form", ["--keys", "--json"])
def test_what_was_read_can_be_written_again(running: TestServer, ask: Run, give_input: GiveInput, form: str) -> None:
    source, target = f"events/source{form}", f"events/target{form}"
    with millrace.blocking.connect(running.address) as client:
        client.create_stream(source)
        with client.writer(source) as writer:
            for number, key in enumerate(KEYS):
                writer.write(b"tab\there %d" % number, key=key)
            if form == "--json":
                writer.write(b"\xff\n", key="k", timestamp_us=17, headers={"trace": b"\xfe", "text": "ä".encode()})
        give_input(ask("read", source, form).out.encode())
        assert ask("write", target, form, "--create").code == 0
        events = []
        for name in (source, target):
            with client.reader(name, end="tail") as reader:
                events.append([event[:2] if form == "--keys" else (*event[:3], event.headers) for event in reader])

    assert [key for _, key, *_ in events[0]][: len(KEYS)] == list(KEYS)
    assert sorted(events[0], key=repr) == sorted(events[1], key=repr)
