"""Leases of clients: when they expire, and what time counts."""

from dataclasses import dataclass

from millrace.server.container.leases import LeaseClock, Leases
from tests.support.clock import ManualClock

LENGTH_S = 3.0


@dataclass
class Session:
    """Something that a client keeps alive."""

    is_renewed: bool = False
    holders_count: int = 0


class Looked:
    """Leases that a test looks at, each second or less: a longer step counts as a second."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.leases: Leases[str] = Leases(LeaseClock(self.clock))
        self.sessions: dict[str, Session] = {}

    def look(self, *, after_s: float = 0.0) -> list[str]:
        self.clock.move(after_s)
        return self.leases.expired((key, LENGTH_S, session) for key, session in self.sessions.items())


def test_a_lease_counts_while_the_loop_turns() -> None:
    """A suspended machine, or a disk that stands still, costs a second of the lease."""
    clock, is_open = ManualClock(), True
    leases = LeaseClock(clock, is_open=lambda: is_open)
    clock.move(0.25)
    assert leases.tick() == 0.25
    clock.move(3600.0)
    assert leases.tick() == 1.25
    clock.jump_wall(3_600_000_000)
    assert leases.tick() == 1.25
    clock.move(60.0)
    is_open = False
    assert leases.tick() == 1.25, "no client could be received from"
    is_open = True
    clock.move(0.25)
    assert leases.tick() == 1.5


def test_a_lease_begins_with_the_first_look_and_with_every_renewal() -> None:
    """Behaviour 30."""
    looked, one = Looked(), Session()
    looked.look(after_s=1.0)
    looked.sessions["one"] = one
    assert [looked.look(after_s=1.0) for _ in range(4)] == [[], [], [], []]
    one.is_renewed = True
    assert looked.look(after_s=0.5) == []
    assert not one.is_renewed
    assert [looked.look(after_s=1.0) for _ in range(3)] == [[], [], []]
    assert looked.look(after_s=0.125) == ["one"]
    assert looked.look() == ["one"], "until it is ended"


def test_a_request_that_waits_holds_the_lease() -> None:
    looked, one = Looked(), Session()
    looked.sessions["one"] = one
    looked.look()
    one.holders_count = 1
    assert [looked.look(after_s=1.0) for _ in range(10)] == [[]] * 10
    one.holders_count = 0
    assert [looked.look(after_s=1.0) for _ in range(3)] == [[]] * 3
    assert looked.look(after_s=0.125) == ["one"]


def test_each_lease_expires_by_itself_and_one_that_was_missing_begins_again() -> None:
    looked, first, second = Looked(), Session(), Session()
    looked.sessions["first"] = first
    looked.look()
    looked.look(after_s=1.0)
    looked.sessions["second"] = second
    assert [looked.look(after_s=1.0) for _ in range(3)] == [[], [], ["first"]]
    del looked.sessions["first"]
    assert looked.look(after_s=1.0) == []
    looked.sessions["first"] = first
    assert looked.look(after_s=0.125) == ["second"]
    assert [looked.look(after_s=1.0) for _ in range(4)] == [["second"]] * 3 + [["second", "first"]]
