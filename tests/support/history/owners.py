"""The producers of the reference: who has each, and what was committed as it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from .bugs import Bug
from .operations import NEVER
from .transactions import Claim

ALONE: Final = "alone"
"""The writer id of one client only: what is refused to it for no reason, nobody else has given a reason for."""


@dataclass(slots=True)
class Owner:
    """What is known of a producer.

    Attributes:
        begun: the highest sequence that the holder has begun.
        fenced: the runs that were replaced.
        former: the holders before this one.
        known_since: how many operations had been called when the run was told that it has begun.
    """

    holder: str
    run: str | None = None
    last: int = -1
    begun: int = -1
    fenced: set[str] = field(default_factory=set)
    former: set[str] = field(default_factory=set)
    known_since: int = NEVER

    def take(self, run: str | None) -> None:
        """Let a run take over, or none."""
        if self.run is not None and self.run != run:
            self.fenced.add(self.run)
        if self.run != run:
            self.run, self.known_since = run, NEVER

    def give(self, holder: str) -> None:
        """Let another holder have it, whose sequences start over."""
        self.take(None)
        self.former.add(self.holder)
        self.holder, self.last, self.begun = holder, -1, -1


class Owners:
    """All producers.

    Args:
        does: see `Reference.does`.
    """

    def __init__(self, does: Callable[..., bool]) -> None:
        self._does = does
        self._by_writer: dict[str, Owner] = {}

    def begin(self, claim: Claim, operation: str) -> str | None:
        """Let the run take over, and return how a beginning is refused; None if it is not."""
        owner = self._by_writer.setdefault(claim.writer, Owner(claim.holder))
        is_alone = claim.writer == ALONE and owner.run == claim.run and owner.known_since < number_of(operation)
        if claim.run in owner.fenced or (is_alone and self._does(Bug.FENCE_THE_NEWEST_RUN, operation)):
            return "fenced"
        is_new = claim.holder != owner.holder and claim.holder not in owner.former
        if is_new and self._does(Bug.LET_AN_OTHER_HOLDER_BEGIN, operation):
            owner.give(claim.holder)
        if claim.holder != owner.holder or (is_alone and self._does(Bug.REFUSE_THE_HOLDER, operation)):
            return "held"
        owner.take(claim.run)
        if claim.sequence <= owner.last and not self._does(Bug.BEGIN_WHAT_IS_COMMITTED, operation):
            return "repeated"
        if claim.sequence > owner.begun and self._does(Bug.CALL_A_NEW_SEQUENCE_COMMITTED, operation):
            return "repeated"
        owner.begun = max(owner.begun, claim.sequence)
        return None

    def note_told(self, writer: str, run: str, count: int) -> None:
        """Note how many operations had been called when a run was told that it has begun."""
        owner = self._by_writer[writer]
        if owner.run == run and owner.known_since == NEVER:
            owner.known_since = count

    def commit(self, claim: Claim, operation: str) -> str | None:
        """Count a commit, and return how it is refused; None if it is not."""
        owner = self._by_writer[claim.writer]
        if owner.run != claim.run:
            is_told = owner.known_since < number_of(operation)
            is_new = claim.holder == owner.holder and claim.sequence > owner.last
            if not (is_told and is_new and self._does(Bug.LET_AN_OLD_RUN_COMMIT, operation)):
                return "fenced"
        elif claim.sequence <= owner.last and not self._does(Bug.COMMIT_A_SEQUENCE_AGAIN, operation):
            return "repeated"
        owner.last = max(owner.last, claim.sequence)
        return None

    def reset(self, writer: str, holder: str) -> str:
        """Give a producer to another holder, and return the answer."""
        owner = self._by_writer.get(writer)
        if owner is None:
            return "unknown"
        if owner.holder == holder:
            return "same"
        owner.give(holder)
        return "done"

    def look(self, writer: str, operation: str) -> tuple[str, dict[str, Any]]:
        """Return what is known of a producer, as an answer with its fields."""
        owner = self._by_writer.get(writer)
        is_told = owner is not None and owner.known_since < number_of(operation)
        if owner is None or (is_told and self._does(Bug.FORGET_A_PRODUCER, operation)):
            return "unknown", {}
        return "known", {"holder": owner.holder, "run": owner.run, "last": owner.last if owner.last >= 0 else None}


def number_of(operation: str) -> int:
    """Return the how manieth an operation is that was called."""
    return int(operation.rpartition(".")[2] or 0)
