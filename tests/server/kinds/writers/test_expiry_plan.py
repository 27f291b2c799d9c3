"""Which writers expire, against what really happened to them."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from millrace.server.container.state.writer import Writer, WriterRow
from millrace.server.kinds.writers.expiry_plan import Borders, ExpiryPlan, borders, decide, step_us
from millrace.server.kinds.writers.options import WritersOptions

S = 1_000_000
OPTIONS = WritersOptions(named_idle_s=480, unnamed_idle_s=160)
STEP_S = 10
MARKS_KEPT = 2


def writer(number: int, *, seen: int, is_named: bool = True, is_mark: bool = False) -> Writer:
    row = WriterRow(number=number, writer_id="w" if is_named else "", epoch=1, opened_us=1, expired_us=int(is_mark))
    return Writer(row, seen_uptime_us=seen)


def test_each_kind_has_its_own_border() -> None:
    writers = [
        writer(1, seen=9), writer(2, seen=10), writer(3, is_named=False, seen=19), writer(4, is_named=False, seen=20),
        writer(5, is_mark=True, seen=4), writer(6, is_mark=True, seen=5),
    ]  # fmt: skip
    plan = decide(writers, Borders(named_us=10, unnamed_us=20, marks_us=5), busy=())
    assert plan == ExpiryPlan(marked=(1,), forgotten=(3, 5))


def test_a_mark_goes_when_it_is_old_and_newer_ones_are_enough() -> None:
    now_us = 1000 * S
    assert borders(OPTIONS, uptime_us=now_us, marks_kept_from_us=300 * S).marks_us == 300 * S
    assert borders(OPTIONS, uptime_us=now_us, marks_kept_from_us=900 * S).marks_us == 510 * S
    assert borders(OPTIONS, uptime_us=now_us, marks_kept_from_us=0).marks_us == 0


def test_a_busy_writer_never_expires() -> None:
    """An append or an open of it is on its way."""
    writers = [writer(1, seen=0), writer(2, is_named=False, seen=0), writer(3, seen=0)]
    writers[2].admitted = writers[2].row.with_epoch(2)
    assert decide(writers, Borders(named_us=1000, unnamed_us=1000, marks_us=1000), busy={1, 2}) == ExpiryPlan((), ())


def test_time_is_counted_in_steps_of_a_sixteenth() -> None:
    assert step_us(OPTIONS) == STEP_S * S
    assert borders(OPTIONS, uptime_us=1000 * S, marks_kept_from_us=1000 * S) == Borders(510 * S, 830 * S, 510 * S)
    assert step_us(WritersOptions()) == 5400 * S


@dataclass
class World:
    """Writers, and servers that come and go, stand still, and record uptime; what really happened is known.

    Of each writer: whether it is a mark, when it was seen in true seconds, and its stamp.
    """

    now_s: int = 1000
    recorded_us: int = 0
    looked_s: int = 1000
    writers: dict[int, tuple[bool, int, int]] = field(default_factory=dict)
    expired: list[tuple[int, int]] = field(default_factory=list)

    def write(self, number: int) -> None:
        self.writers[number] = (False, self.now_s, self.recorded_us)

    def restart(self, pause_s: int) -> None:
        self.now_s += pause_s
        self.looked_s = self.now_s

    def run(self, duration_s: int) -> None:
        for _ in range(duration_s // STEP_S):
            self.stand_still(STEP_S)
        self.now_s += duration_s % STEP_S

    def stand_still(self, duration_s: int) -> None:
        """Pass time without a look, and look then."""
        self.now_s += duration_s
        self.recorded_us += min(self.now_s - self.looked_s, STEP_S) * S
        self.looked_s = self.now_s
        seen = [
            writer(number, is_named=bool(number % 2), is_mark=is_mark, seen=stamp_us)
            for number, (is_mark, _, stamp_us) in self.writers.items()
        ]
        marks_us = sorted((each.seen_uptime_us for each in seen if each.row.expired_us), reverse=True)
        kept_from_us = marks_us[MARKS_KEPT - 1] if len(marks_us) >= MARKS_KEPT else 0
        plan = decide(seen, borders(OPTIONS, uptime_us=self.recorded_us, marks_kept_from_us=kept_from_us), busy=())
        for number in (*plan.marked, *plan.forgotten):
            idle_s = OPTIONS.named_idle_s if number % 2 else OPTIONS.unnamed_idle_s
            self.expired.append((self.now_s - self.writers.pop(number)[1], idle_s))
        for number in plan.marked:
            self.writers[number] = (True, self.now_s, self.recorded_us)


STEPS = st.tuples(
    st.sampled_from(("write", "write", "write", "run", "run", "restart", "stand_still")), st.integers(1, 400)
)


def lived(steps: list[tuple[str, int]]) -> World:
    world = World()
    for kind, amount in steps:
        if kind == "write":
            world.write(amount % 8)
        else:
            getattr(world, kind)(amount if kind == "run" else amount * 1000)
    return world


@given(st.lists(STEPS, max_size=60))
def test_no_writer_expires_too_early(steps: list[tuple[str, int]]) -> None:
    assert all(age_s >= idle_s for age_s, idle_s in lived(steps).expired)


@given(st.lists(STEPS, max_size=60))
def test_time_without_a_check_makes_nothing_expire(steps: list[tuple[str, int]]) -> None:
    """A server that was off for a year, or stopped: writers had no chance to be seen."""
    world = lived(steps)
    world.run(20)
    before = len(world.expired)
    for number in (2, 3):
        world.write(number)
    world.restart(10**8)
    world.run(100)
    world.stand_still(10**8)
    assert {2, 3} <= set(world.writers)
    assert before <= len(world.expired)


@given(st.lists(STEPS, max_size=40))
def test_every_writer_that_stays_silent_goes_in_time(steps: list[tuple[str, int]]) -> None:
    world = lived(steps)
    marks = {number for number, (is_mark, _, _) in world.writers.items() if is_mark}
    world.run(OPTIONS.unnamed_idle_s + 4 * STEP_S)
    assert all(number % 2 for number in world.writers)
    world.run(OPTIONS.named_idle_s - OPTIONS.unnamed_idle_s)
    assert all(is_mark for is_mark, _, _ in world.writers.values())
    kept = sorted((stamp_us for _, _, stamp_us in world.writers.values()), reverse=True)[:MARKS_KEPT]
    assert all(world.writers[number][2] in kept for number in marks.intersection(world.writers))
    world.run(OPTIONS.named_idle_s + 4 * STEP_S)
    assert all(stamp_us in kept for _, _, stamp_us in world.writers.values()), "and who expired with one of them"
