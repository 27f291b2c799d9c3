"""A loop that is held up is found to be, from another thread."""

import asyncio
import threading

from millrace.server.console.liveness import loop_answers


def test_a_loop_answers_while_it_runs_and_not_while_it_is_held_up() -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    held_up, let_go = threading.Event(), threading.Event()

    def hold_up() -> None:
        held_up.set()
        let_go.wait()

    try:
        assert asyncio.run(loop_answers(loop))
        loop.call_soon_threadsafe(hold_up)
        held_up.wait()
        assert not asyncio.run(loop_answers(loop, within_s=0.05))
        let_go.set()
        assert asyncio.run(loop_answers(loop))
    finally:
        let_go.set()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    assert not asyncio.run(loop_answers(loop))
