"""When freed memory is given back."""

import platform
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context

import pytest

from millrace.server.host.memory import FreedMemory, MemoryUse, memory_use

MIB = 1 << 20
REST = 80 * MIB


def use(used_mib: int, kept_mib: int = 0, rest: int = REST) -> MemoryUse:
    return MemoryUse(used_mib * MIB, (used_mib + kept_mib) * MIB + rest)


@pytest.fixture
def freed() -> FreedMemory:
    freed = FreedMemory(window_count=5, slack_bytes=32 * MIB)
    assert not freed.observe(use(50))
    return freed


def test_what_was_in_use_lately_is_kept(freed: FreedMemory) -> None:
    """Each flush frees what the next appends need again."""
    for _ in range(20):
        assert not freed.observe(use(600))
        assert not freed.observe(use(100, 500))


def test_what_was_not_in_use_for_a_while_is_given_back(freed: FreedMemory) -> None:
    """Behaviour 86: memory returns when those who needed it leave."""
    freed.observe(use(600))
    assert [freed.observe(use(60, 540)) for _ in range(5)] == [False] * 4 + [True]
    freed.given_back(use(60, 540), use(60, rest=REST + 10 * MIB))
    assert not freed.observe(use(60, rest=REST + 10 * MIB))


def test_a_server_that_has_just_started_gives_back_what_it_did_not_use(freed: FreedMemory) -> None:
    """Behaviour 86: blocks of many sizes leave holes that nothing fits into, long before the window is full."""
    assert not freed.observe(use(70, 30))
    assert freed.observe(use(70, 33))


def test_what_is_not_the_heaps_is_not_taken_for_freed(freed: FreedMemory) -> None:
    """Pools of small objects grew: giving back is tried more and more rarely."""
    grown = use(60, rest=REST + 200 * MIB)
    tried = []
    for number in range(2000):
        if freed.observe(grown):
            freed.given_back(grown, grown)
            tried.append(number)
    pauses = [after - before for before, after in pairwise(tried)]
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600]


def test_what_was_stuck_is_given_back_when_its_pages_are_free(freed: FreedMemory) -> None:
    """Behaviour 86: what is used in part when memory is given back, in the middle of an attack, is free after it."""
    assert freed.observe(use(120, 120))
    freed.given_back(use(120, 120), use(120, 60))
    kept = [freed.observe(use(120, 60)) for _ in range(5)]
    assert kept == [False] * 4 + [True]
    freed.given_back(use(120, 60), use(120, 5))
    assert not any(freed.observe(use(120, 5)) for _ in range(20))


def test_new_holes_are_not_taken_for_what_is_stuck(freed: FreedMemory) -> None:
    assert freed.observe(use(120, 120))
    freed.given_back(use(120, 120), use(120, 60))
    assert not freed.observe(use(120, 90))
    assert freed.observe(use(120, 93))


def test_garbage_is_collected_once_when_the_process_is_quiet(freed: FreedMemory) -> None:
    """Behaviour 86: what connections leave in cycles is not kept until something else happens."""
    found = []
    for each in [use(50), use(200), use(90), use(91), use(92), use(90), use(90), use(90)]:
        freed.observe(each)
        found.append(freed.has_garbage())
    assert found == [False] * 6 + [True] * 2
    freed.collected(use(89))
    for _ in range(10):
        freed.observe(use(90))
        assert not freed.has_garbage()


def test_little_is_not_given_back(freed: FreedMemory) -> None:
    assert not any(freed.observe(use(60, 32)) for _ in range(20))


def test_the_system_tells_the_use_of_memory() -> None:
    """In a process of its own: what other tests have freed here would be used again, and nothing would grow."""
    library, version = platform.libc_ver()
    tells = library == "glibc" and tuple(map(int, version.split("."))) >= (2, 33)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        before, after = pool.submit(use_around_allocation, 100 * MIB).result()

    assert (before is not None, after is not None) == (tells, tells)
    if before is not None and after is not None:
        assert 100 * MIB <= after.used_bytes - before.used_bytes < 120 * MIB
        assert after.resident_bytes - before.resident_bytes >= 90 * MIB


def use_around_allocation(size_bytes: int) -> tuple[MemoryUse | None, MemoryUse | None]:
    """Return the use of memory of this process before and after so much was allocated."""
    before = memory_use()
    held = b"x" * size_bytes
    after = memory_use()
    del held
    return before, after
