"""Faults of the product: subclasses that leave out one rule, put in place where the product is put together.

A torture that does not find them guards nothing.
"""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, NamedTuple
from unittest import mock

from millrace.client.admin import readers
from millrace.client.read.reader import Reader
from millrace.model.producer import Producer
from millrace.server.errors import ProducerCommittedError, ProducerFencedError, TransactionError
from millrace.server.kinds.producers.commands import ProducerCommands
from millrace.server.kinds.transactions import commands
from tests.support.files import MemoryFile, SteppedFileSystem

from .machine import LOG_PREFIX
from .world import Outcome, Torture, run_torture


class Replaced(NamedTuple):
    """A class or function of the product, by the module that uses it, and what takes its place."""

    module: ModuleType
    replacement: Any
    name: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault of the product.

    Attributes:
        torture: the name of the one that has to find it.
        seeds_count: within how many seeds, from 0 on.
    """

    torture: str
    seeds_count: int
    replaced: Sequence[Replaced] = ()
    files: type[SteppedFileSystem] = SteppedFileSystem

    def run(self, torture: Torture, seed: int) -> Outcome:
        """Run a seed with the fault."""
        with self._in_place():
            return run_torture(torture, seed, files=self.files())

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        with ExitStack() as stack:
            for module, replacement, name in self.replaced:
                stack.enter_context(mock.patch.object(module, name, replacement))
            yield


class LyingFiles(SteppedFileSystem):
    """Reports the log as synced before it is: appends are acknowledged too early."""

    def _datasync(self, file: MemoryFile) -> None:
        if file.path.name.startswith(LOG_PREFIX):
            self.step(file.path, is_change=True)
        else:
            super()._datasync(file)


class CommitsAgain(ProducerCommands):
    """Begins and commits a sequence that was committed."""

    def refusal(self, producer: Producer) -> TransactionError | None:
        found = super().refusal(producer)
        return None if isinstance(found, ProducerCommittedError) else found

    def _take_over(self, producer: Producer, address: str) -> None:
        with contextlib.suppress(ProducerCommittedError):
            super()._take_over(producer, address)


class IgnoresFences(ProducerCommands):
    """Commits for a run that another run has replaced."""

    def refusal(self, producer: Producer) -> TransactionError | None:
        found = super().refusal(producer)
        return None if isinstance(found, ProducerFencedError) else found


class SkipsSuccessors(Reader):
    """Takes a segment that it has not read as read, once that was replaced, too."""

    def _is_passed(self, segment_id: int) -> bool:
        if segment_id not in self._sources and self._lineage.replacement(segment_id) is not None:
            return True
        return super()._is_passed(segment_id)


MUTANTS: Final = {
    "acknowledged before the sync": Mutant("producers", 10, files=LyingFiles),
    "a sequence committed again": Mutant("transactions", 10, [Replaced(commands, CommitsAgain, "ProducerCommands")]),
    "a fence ignored": Mutant("transactions", 10, [Replaced(commands, IgnoresFences, "ProducerCommands")]),
    "a successor skipped": Mutant("producers", 10, [Replaced(readers, SkipsSuccessors, "Reader")]),
}
