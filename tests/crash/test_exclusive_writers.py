"""Many take a stream for themselves if it ends where they expect, and give it back, while the server is killed."""

# mypy: disable-error-code="unused-awaitable"

import asyncio
import contextlib
import random

import pytest

import millrace
from millrace.client.client import Client
from millrace.client.testing import TestServer
from millrace.model.cut import TAIL
from tests.crash.patience import PATIENT
from tests.crash.recorded_reads import RecordedRead, recorded_cut
from tests.crash.recorded_writes import record_outcome
from tests.support.history import Recorder, demand
from tests.support.waiting import PATIENCE_S

STREAM = "crash/ledger"
CLIENTS = 4
TURNS = 25
KILLS = 2


async def book(client: Client, recorder: Recorder, name: str, dice: random.Random) -> None:
    """Take the stream, some times over; what is open when the next one takes it is fenced."""
    for turn in range(TURNS):
        writer_name = f"{name}/{turn}"
        expected = await client.stream_cut(STREAM).tail() if dice.random() < 0.7 else None
        recorded = {} if expected is None else {"expected": recorded_cut(expected)}
        opening = recorder.call(name, "open", stream=STREAM, writer=writer_name, exclusive=True, **recorded)
        writer = client.writer(STREAM, writer_id=name, exclusive=True, expected=expected)
        try:
            await writer.open()
        except millrace.TailChangedError:
            recorder.answer(opening, "refused")
            continue
        recorder.answer(opening, "opened", through=-1)
        with contextlib.suppress(millrace.WriterFencedError):
            for number in range(dice.randint(1, 4)):
                event = f"{writer_name}:{number}"
                call = recorder.call(name, "write", stream=STREAM, writer=writer_name, events=[event])
                stored = writer.write(event.encode())
                record_outcome(recorder, call, stored)
                await stored
            if dice.random() < 0.5:
                call = recorder.call(name, "release", stream=STREAM, writer=writer_name)
                await writer.release()
                recorder.answer(call, "done")
        with contextlib.suppress(millrace.WriterFencedError):
            await writer.close()


async def visit(client: Client, recorder: Recorder, *, until: asyncio.Event) -> None:
    """Write as one among others, whenever nobody has the stream."""
    life = 0
    while not until.is_set():
        life += 1
        writer_name = f"visitor/{life}"
        with contextlib.suppress(millrace.StreamHasExclusiveWriterError):
            async with client.writer(STREAM) as writer:
                for number in range(20):
                    event = f"{writer_name}:{number}"
                    call = recorder.call("visitor", "write", stream=STREAM, writer=writer_name, events=[event])
                    stored = writer.write(event.encode())
                    record_outcome(recorder, call, stored)
                    await stored


async def live(server: TestServer, seed: int) -> Recorder:
    """Return what all were told."""
    recorder = Recorder()
    done = asyncio.Event()
    async with asyncio.timeout(PATIENCE_S), millrace.connect(server.address, options=PATIENT) as client:
        await client.create_stream(STREAM)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(visit(client, recorder, until=done))
            async with asyncio.TaskGroup() as booking:
                for number in range(CLIENTS):
                    dice = random.Random(f"{seed}/{number}")
                    booking.create_task(book(client, recorder, f"clerk-{number}", dice))
                for _ in range(KILLS):
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
                    await client.stream_info(STREAM)
            done.set()
        read = RecordedRead(recorder, "reader", STREAM)
        async with client.reader(STREAM, end=TAIL) as reader:
            async for event in reader:
                read.take(event.value.decode(), segment=event.segment, offset=event.offset, index=event.index)
            read.end(reader.position(), is_tail=True)
    return recorder


@pytest.mark.slow
def test_a_stream_has_one_exclusive_writer_at_a_time_whatever_is_killed(millrace_server: TestServer) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")

    verdict = demand(asyncio.run(live(millrace_server, seed)).lines)

    assert not verdict.counts["unread"]
    assert verdict.counts["open"] == CLIENTS * TURNS
