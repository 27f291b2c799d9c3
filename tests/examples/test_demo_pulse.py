"""Counts that are waited for, and silences that are measured."""

import asyncio

import pytest

from millrace.examples.demo.pulse import Pulse
from tests.support.clock import ManualClock


@pytest.mark.asyncio
async def test_a_count_that_is_there_is_not_waited_for() -> None:
    pulse = Pulse()
    pulse.beat(3)

    await pulse.reach(3)

    assert pulse.count == 3


@pytest.mark.asyncio
async def test_who_waits_is_woken_by_the_event_that_makes_the_count_full() -> None:
    pulse = Pulse()
    waiting = [asyncio.create_task(pulse.reach(count)) for count in (2, 3, 5)]
    await asyncio.sleep(0)

    pulse.beat()
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    pulse.beat(2)
    await asyncio.gather(*waiting[:2])
    assert not waiting[2].done()
    waiting[2].cancel()
    pulse.beat(2)

    assert pulse.count == 5


@pytest.mark.asyncio
async def test_a_silence_counts_from_when_somebody_listens() -> None:
    clock = ManualClock()
    pulse = Pulse(monotonic_s=clock.monotonic_s)
    clock.move(5)
    pulse.beat()
    assert pulse.silence_s == 5

    pulse.listen()
    clock.move(1)
    pulse.beat()
    clock.move(2.5)
    pulse.listen()
    clock.move(0.5)
    pulse.beat()
    clock.move(1)
    pulse.beat()

    assert pulse.silence_s == 1
