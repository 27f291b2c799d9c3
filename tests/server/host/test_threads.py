import os
import sys
import threading

import pytest

from millrace.server.host.threads import SYSTEM_THREADS
from tests.support.waiting import PATIENCE_S


def test_a_thread_has_its_name_and_does_not_keep_the_process_alive() -> None:
    names: list[str] = []
    thread = SYSTEM_THREADS.thread(lambda: names.append(threading.current_thread().name), name="millrace-some")
    assert thread.daemon

    thread.start()
    thread.join(PATIENCE_S)

    assert names == ["millrace-some"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a niceness for each thread")
def test_a_thread_yields_to_those_of_a_lower_niceness() -> None:
    found: list[int] = []

    def look() -> None:
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    thread = SYSTEM_THREADS.thread(look, name="millrace-nice", niceness=min(19, own + 1))

    thread.start()
    thread.join(PATIENCE_S)

    assert found == [min(19, own + 1)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own


def test_bells_and_conditions_work_between_threads() -> None:
    bell, changed = SYSTEM_THREADS.bell(blocking=True), SYSTEM_THREADS.condition()
    is_rung = False

    def work() -> None:
        nonlocal is_rung
        bell.wait()
        with changed:
            is_rung = True
            changed.notify_all()

    SYSTEM_THREADS.thread(work, name="millrace-some").start()
    bell.ring()

    with changed:
        assert changed.wait_for(lambda: is_rung, timeout=PATIENCE_S)
    bell.close()
