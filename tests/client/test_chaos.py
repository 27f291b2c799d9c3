"""Real servers that are killed, stalled and cut, and programs that must not notice."""

import itertools
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace
from millrace.client.chaos import CUT_AFTER_BYTES_MAX, Action, Chaos, chaos, schedule
from millrace.client.testing import TestServer

EVENTS_COUNT = 3000


def numbers_through(address: str, disturbed: Chaos, *, disturbances_count: int) -> list[int]:
    """Write numbers under a name, until so many disturbances are over, and return those that are read then."""
    with millrace.blocking.connect(address) as client:
        client.create_stream("a/b")
        with client.writer("a/b", writer_id="numbers") as writer:
            written = 0
            while written < EVENTS_COUNT or len(disturbed.over) < disturbances_count:
                writer.write_many([b"%d" % number for number in range(written, written + 100)], key="all").result()
                written += 100
        with client.reader("a/b", end=millrace.TAIL) as reader:
            stored = [int(event.value) for event in reader]
    assert len(stored) == written
    return stored


def connected(running: Chaos) -> socket.socket:
    host, _, port = running.address.rpartition(":")
    return socket.create_connection((host, int(port)))


@given(
    st.integers(0, 1 << 32), st.lists(st.sampled_from(Action), min_size=1),
    st.tuples(st.floats(0, 1), st.floats(1, 9)), st.tuples(st.floats(0, 1), st.floats(1, 9)),
)  # fmt: skip
def test_a_seed_is_a_schedule_within_its_bounds(
    seed: int, actions: list[Action], every_s: tuple[float, float], length_s: tuple[float, float]
) -> None:
    def first() -> list[object]:
        return list(itertools.islice(schedule(seed, actions=actions, every_s=every_s, length_s=length_s), 20))

    assert first() == first()
    for each in itertools.islice(schedule(seed, actions=actions, every_s=every_s, length_s=length_s), 20):
        assert each.action in actions
        assert every_s[0] <= each.after_s <= every_s[1]
        if each.action is Action.CUT:
            assert each.length_s == 0
            assert 0 <= each.cut_after_bytes < CUT_AFTER_BYTES_MAX
        else:
            assert length_s[0] <= each.length_s <= length_s[1]


def test_seeds_differ() -> None:
    firsts = {
        next(schedule(seed, actions=list(Action), every_s=(0, 1), length_s=(0, 1))) for seed in range(100)
    }  # fmt: skip

    assert len(firsts) == 100
    assert {each.action for each in firsts} == set(Action)


@pytest.mark.slow
@pytest.mark.parametrize("action", Action)
def test_a_writer_under_a_name_stores_each_event_once(millrace_server: TestServer, action: Action) -> None:
    """Behaviours 5, 9 and 66: whatever happens to the server."""
    with chaos(millrace_server, seed=5, actions=[action], every_s=(0.2, 0.4), length_s=(0.0, 0.1)) as running:
        stored = numbers_through(running.address, running, disturbances_count=4)
        assert {each.action for each in running.over} == {action}

    assert stored == list(range(len(stored)))


def test_a_killed_server_is_another_process_and_runs_at_the_end(millrace_server: TestServer) -> None:
    process = millrace_server.pid
    with (
        chaos(millrace_server, seed=1, actions=["kill"], every_s=(0.0, 0.0), length_s=(3600.0, 3600.0)) as running,
        connected(running) as connection,
    ):
        while connection.recv(1 << 16):
            pass

    assert millrace_server.running
    assert millrace_server.pid != process
    assert [each.action for each in running.over] == ["kill"]
    with millrace.blocking.connect(millrace_server.address) as client:
        client.create_stream("a/b")


def test_a_cut_ends_a_connection_without_traffic_too(millrace_server: TestServer) -> None:
    with (
        chaos(millrace_server, seed=2, actions=["cut"], every_s=(0.0, 0.01)) as running,
        connected(running) as connection,
    ):
        while connection.recv(1 << 16):
            pass
        running.wait(1)
        assert running.over[0].action is Action.CUT


def test_a_failure_names_the_seed_and_what_happened(millrace_server: TestServer) -> None:
    def program() -> None:
        with (
            chaos(millrace_server, seed=77, actions=["stall"], every_s=(0.0, 0.0), length_s=(0.01, 0.01)) as running,
            connected(running),
        ):
            running.wait(2)
            raise AssertionError("the program lost something")

    with pytest.raises(AssertionError, match="lost something") as raised:
        program()

    (note,) = raised.value.__notes__
    assert note.startswith("chaos with seed=77: stall for 0.01 s, stall for 0.01 s")


def test_a_server_that_does_not_start_again_is_an_error(millrace_server: TestServer) -> None:
    (millrace_server.folder / "identity.json").write_bytes(b"not ours")

    with (
        pytest.raises(RuntimeError, match="the server did not start again; chaos with seed=3"),
        chaos(millrace_server, seed=3, actions=["kill"], every_s=(0.0, 0.0), length_s=(0.0, 0.0)) as running,
        connected(running),
    ):
        running.wait(1)


def test_nothing_happens_before_somebody_connects(millrace_server: TestServer) -> None:
    with (
        chaos(millrace_server, seed=3, every_s=(0.0, 0.0)) as running,
        pytest.raises(TimeoutError, match="0 of 1 disturbances in 0 s"),
    ):
        running.wait(1, timeout_s=0.0)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"actions": ["burn"]}, "burn"), ({"actions": []}, "no action"),
        ({"every_s": (1.0, 0.5)}, "every_s"), ({"length_s": (-1.0, 0.5)}, "length_s"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(millrace_server: TestServer, options: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named), chaos(millrace_server, **options):  # type: ignore[arg-type]
        pass


def test_the_fixture_disturbs_the_server_of_the_test(millrace_server: TestServer, millrace_chaos: Chaos) -> None:
    assert millrace_chaos.address != millrace_server.address
    numbers = numbers_through(millrace_chaos.address, millrace_chaos, disturbances_count=2)

    assert numbers == list(range(len(numbers)))
