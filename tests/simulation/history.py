"""What was submitted, acknowledged and found in one schedule, and what must be true of it.

The rules; a violation names its rule:

    LOST        what was acknowledged is found by every later owner, with the runs that were acknowledged
    DOUBLED     it is found once
    REORDERED   what was acknowledged before something else was submitted is found before it
    TWO_ACKS    a sequence is acknowledged once
    LATE_ACK    once a later owner acknowledges, an earlier one acknowledges nothing that this one has not recovered
    DELETED     nothing that the manifest needs is deleted
    DAMAGED     no owner that nobody has superseded finds damage
    STALE       a reply contains all that later owners had acknowledged when it left
    STUCK       once all is calm, a claimant gets the container, and can append
    ERROR       nothing fails that has no reason to

An acknowledgement of an earlier owner may come after the first one of a later owner, if its answer was on its way all
that time, and the process did not notice that it stood still. That is one whose put came before the fence: the
later owner has it, and who submitted it did so before.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from .virtual_loop import VirtualLoop

Runs = tuple[int, ...]


class Rule(Enum):
    """What can be violated."""

    LOST = auto()
    DOUBLED = auto()
    REORDERED = auto()
    TWO_ACKS = auto()
    LATE_ACK = auto()
    DELETED = auto()
    DAMAGED = auto()
    STALE = auto()
    STUCK = auto()
    ERROR = auto()


@dataclass(frozen=True, slots=True)
class Ack:
    """A batch that was acknowledged."""

    epoch: int
    runs: Runs
    at_s: float


@dataclass(slots=True)
class History:
    """Of one schedule. Each run has a number of its own."""

    loop: VirtualLoop
    violations: list[tuple[Rule, str]] = field(default_factory=list)
    # What happened, in words, for the reader of a failure.
    lines: list[str] = field(default_factory=list)
    submitted_s: list[float] = field(default_factory=list)
    acks: dict[int, Ack] = field(default_factory=dict)
    # The first acknowledgement by epoch, and with which batch that epoch began.
    first_acks: dict[int, float] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)
    counted: Counter[str] = field(default_factory=Counter)

    def say(self, text: str) -> None:
        """Note what happened."""
        self.lines.append(f"{self.loop.time():8.3f}  {text}")

    def violated(self, rule: Rule, text: str) -> None:
        """Note what must not have happened."""
        self.violations.append((rule, text))
        self.say(f"{rule.name}: {text}")

    def submitted(self) -> int:
        """Return the number of a new run."""
        self.submitted_s.append(self.loop.time())
        return len(self.submitted_s) - 1

    def recovered(self, who: str, *, epoch: int, batches: dict[int, Runs], next_sequence: int) -> None:
        """Judge what an owner has found before it begins."""
        self.say(f"{who} epoch {epoch} has recovered {len(batches)} batches, continues with {next_sequence}")
        self.counted["starts"] += 1
        self.begun[epoch] = next_sequence
        self._find(who, batches, until_epoch=epoch)

    def acked(self, who: str, *, epoch: int, sequence: int, runs: Runs) -> None:
        """Judge an acknowledgement."""
        now_s = self.loop.time()
        self.counted["acks"] += 1
        self.say(f"{who} epoch {epoch} acks {sequence}: {runs}")
        if (other := self.acks.get(sequence)) is not None:
            self.violated(Rule.TWO_ACKS, f"{sequence} by epochs {other.epoch} and {epoch}: {other.runs} and {runs}")
        later = [each for each, since_s in self.first_acks.items() if each > epoch and since_s < now_s]
        if later:
            self.counted["late acks"] += 1
            if sequence >= min(self.begun[each] for each in later):
                self.violated(Rule.LATE_ACK, f"{who} epoch {epoch} acks {sequence} after epochs {later}")
        self.first_acks.setdefault(epoch, now_s)
        self.acks.setdefault(sequence, Ack(epoch, runs, now_s))

    def replied(self, who: str, *, epoch: int, sequence: int) -> None:
        """Judge a reply from the memory of an owner whose last batch is that one."""
        now_s = self.loop.time()
        self.counted["replies"] += 1
        later = max((each for each, ack in self.acks.items() if ack.epoch > epoch and ack.at_s < now_s), default=0)
        if later > sequence:
            self.violated(Rule.STALE, f"{who} epoch {epoch} replies as of {sequence}, a later owner has acked {later}")

    def judge(self, batches: dict[int, Runs]) -> None:
        """Judge what the last owner has recovered."""
        self._find("the last one", batches, until_epoch=max(self.begun))
        found = [run for _, runs in sorted(batches.items()) for run in runs]
        doubled = [run for run, times in Counter(found).items() if times > 1]
        if doubled:
            self.violated(Rule.DOUBLED, f"runs {doubled}")
        self._check_order(sorted(batches.items()))

    def _find(self, who: str, batches: dict[int, Runs], *, until_epoch: int) -> None:
        """Check that all is there that was acknowledged by earlier owners."""
        for sequence, ack in self.acks.items():
            if ack.epoch >= until_epoch:
                continue
            if batches.get(sequence) != ack.runs:
                found = batches.get(sequence)
                self.violated(
                    Rule.LOST, f"{who} finds {found} at {sequence}, and epoch {ack.epoch} has acknowledged {ack.runs}"
                )

    def _check_order(self, batches: Sequence[tuple[int, Runs]]) -> None:
        acked_s = float("inf")  # the first acknowledgement of what comes later
        for sequence, runs in reversed(batches):
            if any(self.submitted_s[run] > acked_s for run in runs) or list(runs) != sorted(runs):
                self.violated(Rule.REORDERED, f"{runs} at {sequence}")
            if sequence in self.acks:
                acked_s = min(acked_s, self.acks[sequence].at_s)
