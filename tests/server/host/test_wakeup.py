import asyncio
import threading

import pytest

from millrace.server.host.wakeup import Wakeup


def test_a_ring_is_not_lost_without_a_waiter() -> None:
    bell = Wakeup(blocking=True)
    bell.ring()
    bell.ring()

    bell.wait()

    bell.close()


def test_a_ring_wakes_the_thread_that_waits() -> None:
    bell = Wakeup(blocking=True)
    thread = threading.Thread(target=bell.wait)
    thread.start()

    bell.ring()

    thread.join(10)
    assert not thread.is_alive()
    bell.close()


def test_clearing_what_was_not_rung_does_not_block() -> None:
    bell = Wakeup(blocking=False)

    bell.clear()

    bell.close()


@pytest.mark.asyncio
@pytest.mark.both_loops
async def test_rings_from_a_thread_reach_the_loop_and_coalesce() -> None:
    bell = Wakeup(blocking=False)
    loop = asyncio.get_running_loop()
    heard = asyncio.Event()
    count = 0

    def on_ring() -> None:
        nonlocal count
        count += 1
        bell.clear()
        heard.set()

    bell.ring()
    bell.ring()
    loop.add_reader(bell.descriptor, on_ring)
    await heard.wait()
    heard.clear()
    await asyncio.to_thread(bell.ring)
    await heard.wait()

    assert count == 2
    loop.remove_reader(bell.descriptor)
    bell.close()
