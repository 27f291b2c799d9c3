"""Of how many streams there are counters, and that nothing is counted twice or lost."""

from hypothesis import given
from hypothesis import strategies as st

from millrace.server.streams.traffic import StreamTraffic, WriteTotals


def add(traffic: StreamTraffic, written: dict[int, tuple[int, int]], *, duration_s: float = 2.0) -> None:
    """Tell what was written, and the names of the streams that are shown then."""
    sizes = {stream_id: size for stream_id, (size, _) in written.items()}
    events = {stream_id: count for stream_id, (_, count) in written.items()}
    traffic.add(sizes, events, duration_s=duration_s)
    for stream_id in traffic.unnamed:
        traffic.name(stream_id, f"a/{stream_id}")


def test_a_stream_counts_as_its_own_from_when_it_is_shown() -> None:
    traffic = StreamTraffic(2)
    add(traffic, {1: (100, 1)})
    add(traffic, {1: (30, 3)})

    assert traffic.rows == (("a/1", WriteTotals(30, 3)),)
    assert traffic.others == WriteTotals(100, 1)


def test_the_busiest_are_shown_and_those_alike_do_not_take_turns() -> None:
    traffic = StreamTraffic(2)
    for _ in range(10):
        add(traffic, {1: (1000, 1), 2: (900, 1), 3: (950, 1), 4: (5, 1)})
    assert {name for name, _ in traffic.rows} == {"a/1", "a/3"}

    for _ in range(100):
        add(traffic, {1: (1000, 1), 2: (1200, 1), 3: (1000, 1), 4: (5, 1)})
    assert {name for name, _ in traffic.rows} == {"a/1", "a/3"}

    for _ in range(100):
        add(traffic, {1: (1000, 1), 2: (1200, 1), 4: (5000, 1)})
    assert {name for name, _ in traffic.rows} == {"a/2", "a/4"}


def test_one_that_is_deleted_is_shown_no_more() -> None:
    traffic = StreamTraffic(2)
    add(traffic, {1: (1000, 1), 2: (900, 1)})
    traffic.forget([1])
    add(traffic, {3: (10, 1)})

    assert {name for name, _ in traffic.rows} == {"a/2", "a/3"}


def test_one_without_a_name_is_gone() -> None:
    traffic = StreamTraffic(2)
    traffic.add({1: 10}, {1: 1}, duration_s=2.0)
    assert (traffic.unnamed, traffic.rows) == ([1], ())

    traffic.name(1, None)

    assert (traffic.unnamed, traffic.rows) == ([], ())


def test_none_are_shown_if_none_shall_be() -> None:
    traffic = StreamTraffic(0)
    add(traffic, {1: (1000, 1)})

    assert (traffic.rows, traffic.others) == ((), WriteTotals(1000, 1))


WRITTEN = st.dictionaries(st.integers(1, 40), st.tuples(st.integers(0, 1000), st.integers(0, 10)), max_size=40)


@given(st.lists(WRITTEN, max_size=20), st.integers(0, 5))
def test_every_byte_is_counted_once_and_no_counter_falls(
    turns: list[dict[int, tuple[int, int]]], count_max: int
) -> None:
    """So the sum of all rates is what was written, however streams change places."""
    traffic = StreamTraffic(count_max)
    for written in turns:
        before, others = dict(traffic.rows), traffic.others
        add(traffic, written)
        after = dict(traffic.rows)

        grown = [after[name].bytes - before[name].bytes for name in after.keys() & before.keys()]
        grown += [after[name].bytes for name in after.keys() - before.keys()]
        grown.append(traffic.others.bytes - others.bytes)
        # What one had that is not shown any more is not in a row.
        lost = sum(written.get(int(name[2:]), (0, 0))[0] for name in before.keys() - after.keys())
        assert min(grown) >= 0
        assert sum(grown) + lost == sum(size for size, _ in written.values())
        assert len(after) <= count_max
        assert len(traffic._weights) <= 5 * count_max


def test_a_stream_that_lost_its_place_while_its_name_was_looked_up_is_not_remembered() -> None:
    traffic = StreamTraffic(1)
    traffic.add({1: 10}, {1: 1}, duration_s=2.0)
    (looked_up,) = traffic.unnamed
    traffic.add({2: 1000}, {2: 1}, duration_s=2.0)
    traffic.name(looked_up, "a/1")

    # It is shown again only once its name was looked up again: until then nothing is kept of it.
    for _ in range(10):
        traffic.add({1: 100_000}, {1: 1}, duration_s=60.0)
    assert traffic.unnamed == [1]
