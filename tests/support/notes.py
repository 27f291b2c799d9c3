"""A kind of entity that only the tests have: notes, which are written under a name and forgotten.

It is declared as the kinds of the server are, outside of every list of these. It has two requests, two records, a
table, a loop that forgets notes without a text, and two figures.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import construct as c

from millrace.server.container.checkpoint.reader import KindArchive
from millrace.server.container.container import SegmentContainer
from millrace.server.container.entity_cache import EntityCache
from millrace.server.container.kind import Kind, RecordStep
from millrace.server.container.service import Collaborators, RunningService, Service
from millrace.server.container.state.current_batch import CurrentBatch
from millrace.server.container.table import Table
from millrace.server.host.metric_help import MetricHelp, figures_of
from millrace.wire import messages as m
from millrace.wire.messages.declaration import U64, List16, Names, Query, Record, Request, Text, message

NOTES = Names("notes")
NoteNumber = Annotated[int, c.Int64ul, NOTES]
NoteName = Annotated[str, c.PascalString(c.Int16ul, "utf8"), NOTES]


@dataclass(slots=True, eq=False)
class Note:
    number: int
    name: str
    text: str

    @property
    def memory_bytes(self) -> int:
        return 100 + len(self.text)

    def admit_as_durable(self) -> None:
        """There is one view only."""


class NoteArchive(KindArchive[Note]):
    def longer_than(self, length: int) -> list[int]:
        return self._reader.column("SELECT number FROM notes WHERE length(text) > ? ORDER BY number", [length])


@dataclass(slots=True)
class NotesStatistics:
    """The figures of notes."""

    notes: int = 0
    swept_total: int = 0


class NoteSweeper:
    """Forgets notes without a text, once a second.

    Args:
        forget: logs that notes are forgotten, given their numbers.
    """

    def __init__(self, container: SegmentContainer, forget: Callable[[list[int]], m.Record]) -> None:
        self._container = container
        self._forget = forget
        self._notes: EntityCache[Note] = container.state.caches["notes"]
        self._swept_total = 0

    async def run(self) -> None:
        """Sweep until it is cancelled."""
        while True:
            await self._container.clock.sleep(1.0)
            numbers = [note.number for note in self._notes.present() if not note.text]
            if numbers:
                await self._container.decide(self._forget(numbers))
                self._swept_total += len(numbers)

    def statistics(self) -> NotesStatistics:
        """Return the figures."""
        return NotesStatistics(notes=len(self._notes), swept_total=self._swept_total)


class NoteKind(NamedTuple):
    """The kind, its messages, and the class that answers its requests."""

    kind: Kind[Note]
    NoteInfo: Any
    WriteNote: Any
    GetNote: Any
    NoteWritten: Any
    NotesForgotten: Any
    Requests: Any


@contextmanager
def declared_notes() -> Iterator[NoteKind]:
    """Declare the kind and its messages; the messages are unknown again at the end."""

    @message(125)
    class NoteInfo(m.FromServer):
        number: U64
        text: Text

    @message(126)
    class WriteNote(Request[NoteInfo]):
        name: NoteName
        text: Text

    @message(127)
    class GetNote(Query[NoteInfo]):
        name: NoteName

    @message(254)
    class NoteWritten(Record):
        number: NoteNumber
        name: Text
        text: Text

    @message(255)
    class NotesForgotten(Record):
        numbers: List16[NoteNumber]

    class Requests:
        def __init__(self, container: SegmentContainer) -> None:
            self._container = container
            self._notes: EntityCache[Note] = container.state.caches["notes"]

        async def write_note(self, message: WriteNote) -> NoteInfo:
            known = self._notes.find(message.name)
            number = known.number if known is not None else self._container.state.take_id()
            await self._container.decide(NoteWritten(number, message.name, message.text), number)
            return NoteInfo(number, message.text)

        async def get_note(self, message: GetNote) -> NoteInfo:
            note = self._notes.find(message.name)
            return NoteInfo(0, "") if note is None else NoteInfo(note.number, note.text)

    def check(batch: CurrentBatch, record: NoteWritten) -> None:
        batch.check_number("notes", record.number)
        known = batch.state.caches["notes"].loaded(record.number)
        if known is not None and known.name != record.name:
            raise batch.unfit("notes", record.number, f"it is {known.name}, and not {record.name}")

    def written(batch: CurrentBatch, record: NoteWritten) -> None:
        cache = batch.state.caches["notes"]
        note = cache.loaded(record.number)
        if note is None:
            batch.state.use_id(record.number)
            cache.add(Note(record.number, record.name, record.text))
        else:
            note.text = record.text
            cache.changed(note)

    def forgotten(batch: CurrentBatch, record: NotesForgotten) -> None:
        for number in record.numbers:
            batch.state.caches["notes"].remove(number)

    def begin(made: Collaborators) -> RunningService:
        sweeper = made.get(NoteSweeper)
        return RunningService(
            requests=[Requests(made.get(SegmentContainer))],
            loops={"notes": sweeper.run},
            statistics={"notes": sweeper.statistics},
        )

    kind = Kind(
        table=Table("notes", number=200, key=["number"], integers=["number"], texts=["name", "text"]),
        name_column="name",
        row=lambda note: (note.number, note.name, note.text),
        load=Note,
        archive=NoteArchive,
        records={NoteWritten: RecordStep(written, check=check), NotesForgotten: RecordStep(forgotten, removes=True)},
        service=Service(
            factories={NoteSweeper: lambda made: NoteSweeper(made.get(SegmentContainer), NotesForgotten)},
            begin=begin,
            figures=figures_of(
                "notes",
                notes=MetricHelp("notes", "Notes that exist."),
                swept_total=MetricHelp("swept_total", "Notes without a text that were forgotten."),
            ),
        ),
    )
    try:
        yield NoteKind(kind, NoteInfo, WriteNote, GetNote, NoteWritten, NotesForgotten, Requests)
    finally:
        for number in (125, 126, 127, 254, 255):
            del m.MESSAGES[number]
