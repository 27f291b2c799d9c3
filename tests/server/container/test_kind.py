"""A kind that is declared once is pinned, logged, checked, stored, recovered, verified and refused when damaged.

Its requests are answered, its loop runs, and its figures are metrics.
"""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.server.cache import CacheOptions, PageCache
from millrace.server.console.metric_table import with_kinds
from millrace.server.console.metrics import StatisticsCollector
from millrace.server.container.checkpoint.store import CheckpointStore
from millrace.server.container.environment import ContainerEnvironment
from millrace.server.container.kind import Kinds
from millrace.server.container.requests import handlers_of
from millrace.server.container.running import OpenContainer
from millrace.server.container.startup import open_container
from millrace.server.container.state.quarantine import EntityDamage
from millrace.server.errors import CheckpointDamagedError, ContentLostError, DecisionMisfitError
from millrace.server.host.metrics import Metrics
from millrace.server.host.supervisor import Supervisor
from millrace.server.hosting.services import ContainerServices
from millrace.server.kinds.registry import KINDS
from millrace.server.options import ServerOptions
from millrace.server.ownership import FolderOwnership
from millrace.wire import messages as m
from tests.support.clock import ManualClock
from tests.support.files import MemoryFileSystem
from tests.support.memory_log import LogMedium, MemoryLog
from tests.support.notes import NoteArchive, NoteKind, declared_notes
from tests.support.servers import QUIET
from tests.support.storage import FaultyStorage
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

PATH = Path("/data/checkpoint.db")


@pytest.fixture
def notes() -> Iterator[NoteKind]:
    with declared_notes() as notes:
        yield notes


class Home:
    """What a container with notes leaves."""

    def __init__(self, notes: NoteKind) -> None:
        self.kinds = Kinds(*KINDS, notes.kind)
        self.files = MemoryFileSystem()
        self.files.make_directories(PATH.parent)
        self.storage = FaultyStorage()
        self.log = LogMedium()
        self.clock = ManualClock()
        self.epoch = 0

    async def opened(self) -> OpenContainer:
        self.epoch += 1
        return await open_container(
            ContainerEnvironment(
                container=0,
                server_id=uuid.UUID(int=7),
                ownership=FolderOwnership(self.epoch),
                checkpoints=CheckpointStore(self.files, PATH, self.kinds),
                storage=self.storage,
                make_log=lambda: MemoryLog(self.log, clock=self.clock),
                cache=PageCache(CacheOptions()),
                container_options=QUIET,
                page_size_bytes=4096,
                clock=self.clock,
                on_failure=lambda error: None,
            )
        )


async def ask(opened: OpenContainer, notes: NoteKind, request: m.Message) -> Any:
    """Carry a request out, with everything that it names in memory."""
    with await opened.container.loader.pin(m.required_entities(request)):
        return await handlers_of([notes.Requests(opened.container)])[type(request)](request)


async def test_a_kind_of_ones_own_is_stored_and_recovered(notes: NoteKind) -> None:
    home = Home(notes)
    opened = await home.opened()
    for number in range(5):
        await ask(opened, notes, notes.WriteNote(f"n{number}", "x" * number))
    await opened.flusher.checkpoint()
    await ask(opened, notes, notes.WriteNote("n1", "after the checkpoint"))
    forgotten = await ask(opened, notes, notes.GetNote("n2"))
    await opened.container.decide(notes.NotesForgotten([forgotten.number]))
    await opened.close(log_s=5.0, flush_s=0.0)

    opened = await home.opened()
    assert (await ask(opened, notes, notes.GetNote("n1"))).text == "after the checkpoint"
    assert (await ask(opened, notes, notes.GetNote("n2"))).number == 0
    longer = opened.checkpoints.archive(NoteArchive).longer_than(3)
    assert longer == [(await ask(opened, notes, notes.GetNote(name))).number for name in ("n1", "n4")]
    opened.checkpoints.verify()
    await opened.close(log_s=5.0, flush_s=0.0)


async def test_the_service_of_a_kind_answers_requests_and_runs(notes: NoteKind) -> None:
    home, failures = Home(notes), list[BaseException]()
    opened = await home.opened()
    services = ContainerServices(opened, ServerOptions())
    supervisor = Supervisor(metrics=Metrics(), on_failure=lambda name, error: failures.append(error))
    services.start(supervisor)
    for name, text in ("kept", "text"), ("empty", ""):
        await services.handlers.handle(notes.WriteNote(name, text))
    assert metrics_of(services, home.kinds) == {"millrace_notes_notes": 2, "millrace_notes_swept_total": 0}
    home.clock.move(1.0)
    await until(lambda: metrics_of(services, home.kinds)["millrace_notes_swept_total"])
    assert metrics_of(services, home.kinds) == {"millrace_notes_notes": 1, "millrace_notes_swept_total": 1}
    found = [await services.handlers.handle(notes.GetNote(name)) for name in ("empty", "kept")]
    assert found == [notes.NoteInfo(0, ""), notes.NoteInfo(1, "text")]
    await supervisor.stop()
    await opened.close(log_s=5.0, flush_s=0.0)
    assert failures == []


def metrics_of(services: ContainerServices, kinds: Kinds) -> dict[str, float]:
    """Return the metrics of notes."""
    collector = StatisticsCollector(services.statistics, lambda: "", figures=with_kinds(kinds))
    samples = (sample for metric in collector.collect() for sample in metric.samples)
    return {sample.name: sample.value for sample in samples if sample.name.startswith("millrace_notes_")}


async def test_a_record_that_does_not_fit_is_not_logged(notes: NoteKind) -> None:
    opened = await Home(notes).opened()
    number = (await ask(opened, notes, notes.WriteNote("a", "1"))).number
    with pytest.raises(DecisionMisfitError, match="it is a, and not b"):
        await opened.container.decide(notes.NoteWritten(number, "b", "2"))
    await opened.close(log_s=5.0, flush_s=0.0)


async def test_a_damaged_entity_may_only_be_removed(notes: NoteKind) -> None:
    opened = await Home(notes).opened()
    number = (await ask(opened, notes, notes.WriteNote("a", "1"))).number
    opened.container.state.quarantine.add(EntityDamage("notes", number, 1, 0, "NOTE_WRITTEN", "a test damaged it"))
    with pytest.raises(ContentLostError, match=f"note {number} is damaged"):
        await opened.container.decide(notes.NoteWritten(number, "a", "2"))
    await opened.container.decide(notes.NotesForgotten([number]))
    await opened.close(log_s=5.0, flush_s=0.0)


async def test_a_server_without_the_kind_refuses_the_checkpoint(notes: NoteKind) -> None:
    home = Home(notes)
    opened = await home.opened()
    await opened.flusher.checkpoint()
    await opened.close(log_s=5.0, flush_s=0.0)
    with pytest.raises(CheckpointDamagedError, match="the schema is not the one of this format"):
        CheckpointStore(home.files, PATH, KINDS).load()
