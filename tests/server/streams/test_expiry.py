"""Which writers expire, against what really happened to them."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from millrace.server.streams.expiry import ExpiryPlan, WriterFacts, decide
from millrace.server.streams.timeline import Timeline

S = 1_000_000
NAMED_IDLE_S, UNNAMED_IDLE_S = 300, 100


def facts(number: int, **changes: int | bool) -> WriterFacts:
    values: dict[str, int | bool] = {"is_named": True, "is_busy": False, "active_us": 10, "expired_us": 0, **changes}
    return WriterFacts(writer_number=number, **values)  # type: ignore[arg-type]


def test_each_kind_has_its_own_time() -> None:
    writers = [
        facts(1, active_us=9), facts(2, active_us=10), facts(3, is_named=False, active_us=19),
        facts(4, is_named=False, active_us=20), facts(5, active_us=1, expired_us=9),
        facts(6, active_us=1, expired_us=10),
    ]  # fmt: skip
    assert decide(writers, named_before_us=10, unnamed_before_us=20) == ExpiryPlan(marked=(1,), forgotten=(3, 5))


def test_a_busy_writer_never_expires() -> None:
    writers = [facts(1, is_busy=True), facts(2, is_busy=True, is_named=False)]
    assert decide(writers, named_before_us=1000, unnamed_before_us=1000) == ExpiryPlan((), ())


@dataclass
class World:
    """Writers, a wall clock that may jump, and servers that come and go; what really happened is known.

    Of each writer: its name, when it was active last or expired, in true seconds, and the stamp that it got for that.
    """

    now_s: int = 1000
    wall_s: int = 1_700_000_000
    writers: dict[int, tuple[bool, int, int, bool]] = field(default_factory=dict)
    timeline: Timeline = field(init=False)
    last_stamp_us: int = 0
    expired: list[tuple[int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.timeline = Timeline(monotonic_s=float(self.now_s), unix_us=self.wall_s * S)
        stamps = [stamp_us for _, _, stamp_us, is_mark in self.writers.values() if not is_mark]
        self.last_stamp_us = max((stamp for stamp in stamps if stamp <= self.wall_s * S), default=0)

    def live(self, duration_s: int) -> None:
        self.now_s += duration_s
        self.wall_s += duration_s
        self.look()

    def write(self, number: int) -> None:
        self.writers[number] = (bool(number % 2), self.now_s, self.wall_s * S, False)

    def look(self) -> None:
        now_s = float(self.now_s)
        self.timeline.observe(monotonic_s=now_s, unix_us=self.wall_s * S)
        named_us, unnamed_us = (
            self.timeline.old_before_us(idle_s, monotonic_s=now_s, last_stamp_us=self.last_stamp_us)
            for idle_s in (NAMED_IDLE_S, UNNAMED_IDLE_S)
        )
        seen = [
            facts(
                number,
                is_named=is_named,
                active_us=0 if is_mark else stamp_us,
                expired_us=stamp_us if is_mark else 0,
            )
            for number, (is_named, _, stamp_us, is_mark) in self.writers.items()
        ]
        plan = decide(seen, named_before_us=named_us, unnamed_before_us=unnamed_us)
        for number in (*plan.marked, *plan.forgotten):
            is_named, when_s, _, _ = self.writers.pop(number)
            self.expired.append((number, self.now_s - when_s, NAMED_IDLE_S if is_named else UNNAMED_IDLE_S))
        for number in plan.marked:
            self.writers[number] = (True, self.now_s, self.wall_s * S, True)


STEPS = st.tuples(st.sampled_from(("write", "write", "write", "live", "live", "jump")), st.integers(1, 400))


@given(st.lists(STEPS, max_size=60))
def test_no_jump_of_the_clock_makes_a_writer_expire_too_early(steps: list[tuple[str, int]]) -> None:
    world = World()
    for kind, amount in steps:
        if kind == "write":
            world.write(amount % 8)
        elif kind == "live":
            world.live(amount)
        else:
            world.wall_s += (amount - 200) * 100_000  # up to eight months, either way
            world.look()
    assert all(age_s >= bound_s for _, age_s, bound_s in world.expired), world.expired


@given(st.lists(STEPS, max_size=40), st.integers(0, 10**8))
def test_a_jump_while_no_server_runs_makes_nothing_expire(steps: list[tuple[str, int]], jump_s: int) -> None:
    """How long nobody ran is not known: it might as well be a clock that jumped."""
    world = World()
    for kind, amount in steps:
        if kind == "write":
            world.write(amount % 8)
        else:
            world.live(amount)
    before = len(world.expired)
    world.wall_s += jump_s
    world.start()
    world.look()
    assert len(world.expired) == before
    world.live(20)
    assert all(age_s >= bound_s for _, age_s, bound_s in world.expired), world.expired


@given(st.lists(STEPS, max_size=40))
def test_every_writer_that_stays_silent_goes_at_last(steps: list[tuple[str, int]]) -> None:
    world = World()
    for kind, amount in steps:
        if kind == "write":
            world.write(amount % 8)
        elif kind == "live":
            world.live(amount)
        else:
            world.start()
    for _ in range(20):
        world.live(100)
    assert world.writers == {}
