from itertools import pairwise

from millrace.server.cache import CacheOptions
from millrace.server.cache.read_ahead import Run, SequentialReaders

PAGE = 4096
LIMIT = 1 << 40


def readers(*, ahead: int = 8 * PAGE, readers_max: int = 100) -> SequentialReaders:
    return SequentialReaders(
        CacheOptions(budget_bytes=100 * PAGE, page_size_bytes=PAGE, read_ahead_bytes=ahead, readers_max=readers_max)
    )


def read(reader: SequentialReaders, start: int, end: int, *, limit: int = LIMIT) -> tuple[int, int]:
    """Do one read whose plan is carried out whole."""
    run = reader.take(1, start)
    plan = reader.plan(run, end=end, limit=limit)
    run.horizon = plan[1]
    reader.put(run, 1, start=start, end=end)
    return plan


def test_a_first_read_plans_nothing() -> None:
    start, stop = read(readers(), 0, PAGE)

    assert start == stop


def test_a_read_that_continues_plans_further_ahead_the_longer_it_lasts() -> None:
    reader = readers()
    plans = [read(reader, page * PAGE, (page + 1) * PAGE) for page in range(12)]

    distances = [(stop - (page + 1) * PAGE) // PAGE for page, (_, stop) in enumerate(plans)]
    assert distances == [0, 2, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8]
    # Nothing is planned twice.
    assert all(start >= before[1] for before, (start, _) in pairwise(plans[1:]))


def test_small_reads_plan_whole_pages() -> None:
    reader = readers()
    plans = [read(reader, at, at + PAGE // 8) for at in range(0, 20 * PAGE, PAGE // 8)]

    planned = [stop - start for start, stop in plans if stop > start]
    assert all(size >= PAGE for size in planned)
    assert len(planned) <= 30


def test_nothing_is_planned_from_the_limit_on() -> None:
    reader = readers()
    limit = 5 * PAGE + 100
    plans = [read(reader, page * PAGE, (page + 1) * PAGE, limit=limit) for page in range(5)]

    assert max(stop for _, stop in plans) == limit


def test_a_read_elsewhere_is_no_continuation() -> None:
    reader = readers()
    read(reader, 0, PAGE)

    start, stop = read(reader, 3 * PAGE, 4 * PAGE)

    assert start == stop


def test_read_ahead_can_be_turned_off() -> None:
    reader = readers(ahead=0)
    plans = [read(reader, page * PAGE, (page + 1) * PAGE) for page in range(5)]

    assert all(start == stop for start, stop in plans)


def test_two_readers_side_by_side_keep_their_run() -> None:
    reader = readers()
    for page in range(4):
        read(reader, page * PAGE, (page + 1) * PAGE)
        read(reader, page * PAGE, (page + 1) * PAGE)

    run = reader.take(1, 4 * PAGE)

    assert run.length == 4 * PAGE
    assert len(reader) == 0


def test_the_readers_remembered_are_bounded_and_those_that_read_last() -> None:
    reader = readers(readers_max=10)
    for segment_id in range(100):
        reader.put(Run(), segment_id, start=0, end=5)

    assert len(reader) == 10
    assert reader.take(99, 5).length == 5
    assert reader.take(0, 5).length == 0
