import asyncio
from pathlib import Path

import pytest

import millrace
from millrace.client.testing import TestServer, server
from millrace.server.app import Server
from millrace.server.kinds.writers.options import WritersOptions
from millrace.wire import messages as m
from millrace.wire.append_run import Sequences
from tests.cli.conftest import Run
from tests.support.clock import ManualClock
from tests.support.protocol import Peer
from tests.support.servers import server_options


def write(running: TestServer, stream: str, *, segments: int = 1) -> list[int]:
    """Write three events, of one key, and return the segments of the stream."""
    with millrace.blocking.connect(running.address) as client:
        client.create_stream(stream, millrace.StreamConfig(scaling=millrace.ScalingPolicy.fixed(segments)))
        with client.writer(stream, writer_id=f"{stream}:w") as writer:
            writer.write_many([b"1", b"2", b"3"], key="k").result()
        return [segment.segment_id for segment in client.stream_info(stream).segments]


def test_a_writer_is_shown(ask: Run, running: TestServer) -> None:
    (segment_id,) = write(running, "writers/shown")

    shown = ask("writer", "info", "writers/shown", "writers/shown:w")
    found = ask("writer", "info", "writers/shown", "writers/shown:w", "--json").json

    assert shown.code == 0
    assert [line.split()[0] for line in shown.lines] == [
        "writer", "number", "epoch", "last", "state", "segment", str(segment_id),
    ]  # fmt: skip
    assert shown.lines[-1].split() == [str(segment_id), "3"]
    assert (found["epoch"], found["expired_us"], found["event"], found["stored_through"]) == (1, None, None, -1)
    assert found["segments"] == [{"segment_id": segment_id, "last_event_number": 3}]


def test_the_sequence_through_which_all_is_stored_is_shown(ask: Run, running: TestServer) -> None:
    with millrace.blocking.connect(running.address) as client:
        client.create_stream("writers/sequences")
        with client.writer("writers/sequences", writer_id="writers/sequences:w") as writer:
            writer.write(b"x", sequence=4711).result()

    shown = ask("writer", "info", "writers/sequences", "writers/sequences:w")
    assert ["stored", "through", "sequence", "4,711"] in [line.split() for line in shown.lines]


@pytest.mark.parametrize(("number", "outcome", "code"), [(1, "stored", 0), (3, "stored", 0), (4, "not stored", 1)])
def test_the_outcome_of_an_event_is_told(ask: Run, running: TestServer, number: int, outcome: str, code: int) -> None:
    """Behaviour 9: by writer and event number."""
    stream = f"writers/outcome-{number}"
    write(running, stream)

    shown = ask("writer", "info", stream, f"{stream}:w", "--event", number)
    found = ask("writer", "info", stream, f"{stream}:w", "--event", number, "--json")

    assert (shown.code, found.code) == (code, code)
    assert ["event", str(number), *outcome.split()] in [line.split() for line in shown.lines]
    assert found.json["event"] == {"number": number, "outcome": outcome}


def test_an_event_of_a_stream_with_many_segments_needs_its_segment(ask: Run, running: TestServer) -> None:
    segment_ids = write(running, "writers/many", segments=2)
    arguments = ("writer", "info", "writers/many", "writers/many:w", "--event", 3)

    refused = ask(*arguments)
    codes = [ask(*arguments, "--segment", segment_id).code for segment_id in segment_ids]

    assert refused.code == 2
    assert f"one of {segment_ids[0]}, {segment_ids[1]}" in refused.err
    assert sorted(codes) == [0, 1]
    assert ask(*arguments, "--segment", 10**9).code == 2
    assert ask(*arguments[:4], "--segment", segment_ids[0]).code == 2


def test_a_writer_or_a_stream_that_is_not_there_is_an_error(ask: Run, running: TestServer) -> None:
    write(running, "writers/there")

    never = ask("writer", "info", "writers/there", "nobody")

    assert (never.code, never.out) == (1, "")
    assert "never opened" in never.err
    assert ask("writer", "info", "writers/gone", "nobody").code == 1


def test_a_writer_that_has_expired_is_shown_as_such(run: Run, tmp_path: Path) -> None:
    asyncio.run(let_a_writer_expire(tmp_path))

    with server(tmp_path) as running:
        arguments = ("writer", "info", "a/b", "till-7", "--event", 1, "--address", running.address)
        shown, found = run(*arguments), run(*arguments, "--json")

    assert (shown.code, found.code) == (1, 1)
    assert "expired at 2023-11-14 22:4" in shown.out
    assert "unknown: the writer has expired" in shown.out
    assert "start_over_if_expired" in shown.err
    assert found.json["expired_us"] > found.json["active_us"]
    assert found.json["segments"] == []
    assert found.json["event"] == {"number": 1, "outcome": "expired"}


async def let_a_writer_expire(folder: Path) -> None:
    clock = ManualClock(unix_us=1_700_000_000_000_000)
    options = server_options(folder, writers=WritersOptions(named_idle_s=1600))
    async with Server(options, clock=clock) as running, millrace.connect(running.address) as client:
        await client.create_stream("a/b")
        async with client.writer("a/b", writer_id="till-7") as writer:
            await writer.write(b"1")
        for _ in range(19):
            clock.move(100)
            await running.services.expiry.expire()


async def refused_writer(address: str, stream: str, writer_id: str) -> None:
    """Open a writer that sends one sequence twice."""
    async with await Peer.connect(address) as peer:
        info = await peer.ask(m.CreateStream(stream, 1, ""), m.StreamInfo)
        opened = await peer.ask(m.OpenWriter(writer_id, [], 0, info.stream_id), m.WriterOpened)
        fields = {"writer_number": opened.writer_number, "writer_epoch": opened.writer_epoch}
        for number in (1, 2):
            ids = await peer.append(
                info.segments[0].segment_id, b"x", event_number=number, sequences=Sequences(7, 7, 7), **fields
            )
            await peer.settled(ids)


def test_a_writer_that_was_refused_for_its_sequences_is_reset(ask: Run, running: TestServer) -> None:
    """Behaviour 66."""
    stream, writer_id = "writers/reset", "writers/reset:w"
    asyncio.run(refused_writer(running.address, stream, writer_id))

    done = ask("writer", "reset", stream, writer_id, "--stored-through", 7)
    again = ask("writer", "reset", stream, writer_id, "--stored-through", 7)
    unknown = ask("writer", "reset", stream, "nobody", "--stored-through", 7)

    assert (done.code, again.code, unknown.code) == (0, 1, 1)
    assert "resumes on writers/reset after sequence 7" in done.out + done.err
    assert "no sequence of writer writers/reset:w was rejected" in again.err
