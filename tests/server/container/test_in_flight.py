"""A refusal tells only what is durable: it waits for what is in flight, and for nothing else."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from millrace.server.container.admission import PendingAppend
from millrace.server.container.entity_cache import Pins
from millrace.server.container.in_flight import InFlight, PendingDecision
from millrace.server.errors import (
    ConditionFailedError,
    DecisionLostError,
    LogFailedError,
    NoSpaceError,
    ServerError,
    ThrottledError,
)
from millrace.wire import messages as m
from millrace.wire.append_run import AppendRun
from millrace.wire.errors import ErrorCode
from tests.server.container.histories import run_of
from tests.server.container.in_flight_cases import CASES, Case, Scene
from tests.support.internal import Appender
from tests.support.protocol import Stored, code_of
from tests.support.scenario import Scenario
from tests.support.waiting import until


@pytest_asyncio.fixture
async def scene(scenario: Scenario) -> AsyncIterator[Scene]:
    async with (
        scenario.running() as run,
        run.peer() as first,
        run.peer() as second,
    ):
        made = Scene(run, scenario.log, first, second)
        await made.prepare()
        yield made
        scenario.log.resume()


PARAMETERS = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


def shown(answer: object) -> object:
    return f"created {answer.created}" if isinstance(answer, m.StreamInfo) else answer


async def asked_in_vain(scene: Scene, case: Case) -> "asyncio.Future[object]":
    """Return the answer of a case that is not there, however long others are served meanwhile."""
    await scene.stall(case)
    answering = asyncio.ensure_future(case.ask(scene))
    async with scene.run.peer() as other:
        for _ in range(20):
            await other.ask(m.ListStreams("", "", 10), m.StreamList)
    assert not answering.done()
    return answering


@PARAMETERS
@pytest.mark.asyncio
async def test_an_answer_that_rests_on_what_is_in_flight_waits_for_its_sync(scene: Scene, case: Case) -> None:
    """Behaviour 84."""
    answering = await asked_in_vain(scene, case)

    scene.log.resume()

    assert shown(await answering) == case.answer


@PARAMETERS
@pytest.mark.asyncio
async def test_if_that_sync_fails_the_answer_is_to_try_again(scene: Scene, case: Case) -> None:
    """Behaviour 84: nothing was stored, and what it would have been refused for may never have been."""
    answering = await asked_in_vain(scene, case)

    scene.log.is_failing = True
    scene.log.resume()

    assert await answering is (ErrorCode.SHUTTING_DOWN if case.is_refusal else ErrorCode.OUTCOME_UNKNOWN)


@pytest.mark.asyncio
async def test_an_exclusive_writer_loses_its_stream_while_its_opening_is_in_flight_and_is_fenced(scene: Scene) -> None:
    def opening(writer_id: str) -> m.OpenWriter:
        return m.OpenWriter(writer_id, [], 0, scene.ids["stream"], exclusive=1)

    await scene.stall()
    taking = await scene.first.start(opening("x"))
    await until(lambda: scene.in_flight)
    taking_over = await scene.second.start(opening("y"))
    async with scene.run.peer() as other:
        for _ in range(20):
            await other.ask(m.ListStreams("", "", 10), m.StreamList)
    scene.log.resume()
    loser = await scene.first.reply(taking, m.WriterOpened)
    await scene.second.reply(taking_over, m.WriterOpened)

    fields = {"writer_number": loser.writer_number, "writer_epoch": loser.writer_epoch, "event_number": 1}
    assert await scene.append(scene.first, "s", **fields) is ErrorCode.WRITER_FENCED


@pytest.mark.asyncio
async def test_an_answer_waits_for_the_last_that_is_in_flight() -> None:
    """Behaviour 84: what was queued during a sync needs another one."""
    in_flight = InFlight()
    runs = [AppendRun.of_record(b"record") for _ in range(2)]
    for number in range(2):
        in_flight.add(PendingDecision(m.SegmentSealed(number), (m.SegmentSealed, number), Pins()))
    waiting = asyncio.ensure_future(in_flight.settled())
    await asyncio.sleep(0)

    in_flight.durable(runs[:1])
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    in_flight.durable(runs[1:])

    await waiting


@pytest.mark.asyncio
async def test_a_request_that_was_cancelled_before_the_log_failed_leaves_no_error() -> None:
    """asyncio logs the error of a future that nobody has looked at; here nobody will."""
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["message"]))
    in_flight = InFlight()
    decision = PendingDecision(m.SegmentSealed(1), (m.SegmentSealed, 1), Pins())
    in_flight.add(decision)
    requests = [asyncio.ensure_future(decision.durable()), asyncio.ensure_future(in_flight.settled())]
    await asyncio.sleep(0)
    for each in requests:
        each.cancel()
    await asyncio.wait(requests)

    in_flight.fail(LogFailedError("the log failed", subject="/data/wal"))

    await asyncio.sleep(0)
    del requests, decision
    gc.collect()
    assert errors == []


@pytest.mark.asyncio
async def test_who_asks_after_it_was_settled_is_told() -> None:
    """The event loop may sync a lone decision before the task that answers it has begun."""
    for failure in (None, LogFailedError("the log failed", subject="/data/wal")):
        in_flight = InFlight()
        decision = PendingDecision(m.SegmentSealed(1), (m.SegmentSealed, 1), Pins())
        in_flight.add(decision)
        if failure is None:
            in_flight.durable([AppendRun.of_record(b"record")])
            await decision.durable()
        else:
            in_flight.fail(failure)
            with pytest.raises(LogFailedError):
                await decision.durable()


@pytest.mark.asyncio
async def test_nothing_is_refused_for_what_a_failed_log_has_lost() -> None:
    """Behaviour 84: a request that is decided after the failure still meets what was admitted before it."""
    in_flight = InFlight()
    await in_flight.settled()
    in_flight.fail(LogFailedError("the log failed"))

    with pytest.raises(DecisionLostError):
        await in_flight.settled()


@pytest.mark.asyncio
async def test_where_nothing_is_in_flight_a_refusal_waits_for_nothing(scene: Scene) -> None:
    """Behaviour 84: here the log does not even answer."""
    await scene.first.store(scene.ids["a"], b"x")
    await scene.stall()

    assert await scene.append(scene.second, "a", expected_offset=0) is ErrorCode.CONDITION_FAILED
    assert await code_of(scene.second.create_segment("raw/a")) is ErrorCode.SEGMENT_EXISTS
    assert await scene.append(scene.second, "sealed") is ErrorCode.SEGMENT_SEALED


@pytest.mark.asyncio
async def test_a_question_is_answered_from_what_is_durable_and_at_once(scene: Scene) -> None:
    """Behaviour 84: what is in flight is not told, and not waited for."""
    await scene.stall(CASES["exists"])

    assert await code_of(scene.second.ask(m.GetSegment(0, "raw/new"), m.SegmentInfo)) is ErrorCode.SEGMENT_NOT_FOUND
    assert await code_of(scene.second.read(scene.ids["a"], 1)) is ErrorCode.OFFSET_BEYOND_END


@pytest.mark.asyncio
async def test_what_does_not_tell_the_state_is_refused_at_once(scene: Scene) -> None:
    """Behaviour 84: an append that is too large, a name that is none."""
    await scene.stall(CASES["wrong offset"])

    (request_id,) = await scene.second.append(scene.ids["a"], bytes(70_000))
    assert await scene.second.settled([request_id]) == [ErrorCode.APPEND_TOO_LARGE]
    assert await code_of(scene.second.create_segment("no name")) is ErrorCode.INVALID_NAME


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [NoSpaceError("the log is full"), ThrottledError("memory is full", retry_after_ms=1)])
async def test_that_there_is_no_room_is_told_at_once(scene: Scene, error: ServerError) -> None:
    """Behaviours 44 and 84: whatever is in flight, and though a refusal of the same append would wait."""
    container = scene.run.container
    await scene.stall(CASES["wrong offset"])
    run = run_of(container.segment(scene.ids["a"]), offset=0, size=1, event_count=1)

    assert container.refuse(run, Appender(), error).settled
    assert not container.refuse(run, Appender(), ConditionFailedError("another offset")).settled


def test_each_error_that_is_told_at_once_tells_no_state() -> None:
    """Behaviour 84: a new error is about the state of the container, and waits, or it stands here."""
    waiting = {each.code for each in kinds_below(ServerError) if each.tells_state}

    assert {each.code for each in kinds_below(ServerError)} - waiting == {
        ErrorCode.APPEND_TOO_LARGE,
        ErrorCode.CONTENT_LOST,
        ErrorCode.NO_SPACE,
        ErrorCode.OUTCOME_UNKNOWN,
        ErrorCode.PIPELINE_BROKEN,
        ErrorCode.SHUTTING_DOWN,
        ErrorCode.THROTTLED,
        ErrorCode.UNAVAILABLE,
    }


def kinds_below(kind: type[ServerError]) -> Iterator[type[ServerError]]:
    for each in kind.__subclasses__():
        yield each
        yield from kinds_below(each)


@pytest.mark.asyncio
async def test_a_refusal_that_waits_keeps_no_frames(scene: Scene) -> None:
    """Behaviour 86: what it holds is counted, and is not the append."""
    container = scene.run.container
    await scene.stall()
    (stored,) = await scene.first.append(scene.ids["a"], b"x")
    await until(lambda: scene.in_flight)
    before = container.in_flight.held_bytes
    (refused,) = await scene.second.append(scene.ids["a"], b"y" * 10_000, expected_offset=99)
    await until(lambda: container.in_flight.held_bytes > before)
    ((follower,),) = container.in_flight._followers.values()
    assert isinstance(follower, PendingAppend)
    assert follower.error is not None
    assert follower.error.__traceback__ is None
    scene.log.resume()
    await scene.first.settled([stored])
    assert await scene.second.settled([refused]) == [ErrorCode.CONDITION_FAILED]
    assert container.in_flight.held_bytes == 0


@pytest.mark.asyncio
async def test_acks_come_before_the_refusal_and_the_pipeline_after_it_is_broken(scene: Scene) -> None:
    """Behaviours 6 and 84: a refusal that waits keeps its turn, and what was sent after it is not applied."""
    await scene.stall()
    peer, segment_id = scene.second, scene.ids["a"]
    stored = await peer.append(segment_id, b"one", b"two")
    await until(lambda: scene.in_flight)
    refused = await peer.append(segment_id, b"x", expected_offset=1)
    broken = await peer.append(segment_id, b"y", b"z")
    elsewhere = await peer.append(scene.ids["b"], b"elsewhere")
    scene.log.resume()

    assert await peer.settled([*stored, *refused, *broken, *elsewhere]) == [
        Stored(0, duplicate=False),
        Stored(3, duplicate=False),
        ErrorCode.CONDITION_FAILED,
        ErrorCode.PIPELINE_BROKEN,
        ErrorCode.PIPELINE_BROKEN,
        Stored(0, duplicate=False),
    ]
    assert list(peer.outcomes)[-6:] == [*stored, *refused, *broken, *elsewhere]
    assert peer.errors[refused[0]].length == 6
    assert await peer.store(segment_id, b"again", expected_offset=6) == [6]


@pytest.mark.asyncio
async def test_a_client_that_leaves_while_its_refusal_waits_disturbs_nobody(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """Behaviour 84: neither a request with a task nor an append is answered then."""
    await scene.stall(CASES["exists"])
    async with scene.run.peer() as gone:
        await gone.start(m.CreateSegment("raw/new"))
        await gone.append(scene.ids["a"], b"x", expected_offset=7)
        await gone.ask(m.ListStreams("", "", 10), m.StreamList)

    scene.log.resume()

    assert await scene.second.store(scene.ids["a"], b"x") == [0]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.asyncio
async def test_a_name_is_free_once_its_delete_is_durable(scene: Scene) -> None:
    """Behaviour 84: a creation that meets a delete on its way is neither refused nor carried out before it."""
    await scene.stall(CASES["deleted twice"])
    created = asyncio.ensure_future(scene.second.create_segment("raw/a"))
    await scene.first.ask(m.ListStreams("", "", 10), m.StreamList)

    scene.log.resume()

    assert await created not in scene.ids.values()
