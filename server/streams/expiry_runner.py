"""Lets idle writers expire: looks at the writers once a minute, a page at a time.

A page is looked at, decided on and put on its way into the log in one step, so nothing can come between. A record that
is refused, or lost with the server, is decided anew at the next look.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from millrace.server.container.container import SegmentContainer
from millrace.server.container.control import SegmentControl
from millrace.server.container.state import ACTIVITY_STEP_US
from millrace.server.errors import ServerError

from .expiry import WriterFacts, decide
from .options import WritersOptions
from .timeline import Timeline

logger = logging.getLogger(__name__)

PAGE_COUNT: Final = 1000
"""Writers looked at in one step: about a millisecond, and no more numbers than that in one record."""


@dataclass(slots=True)
class WritersStatistics:
    """Writers that expired since the server started."""

    named_expired_total: int = 0
    unnamed_expired_total: int = 0
    marks_forgotten_total: int = 0


class ExpiryRunner:
    """Lets the idle writers of one container expire. Made when the container was opened, before writers come."""

    def __init__(self, *, container: SegmentContainer, control: SegmentControl, options: WritersOptions) -> None:
        self._container = container
        self._state = container.state
        self._control = control
        self._clock = container.clock
        self._options = options
        now_us = self._clock.unix_us()
        self._timeline = Timeline(monotonic_s=self._clock.monotonic_s(), unix_us=now_us)
        # Writers of an earlier process were silent from their last stamp up to this one; what then passed until we
        # started, no clock can tell from a jump.
        self._last_stamp_us = self._state.last_activity_us(until_us=now_us)
        self.statistics = WritersStatistics()

    async def run(self) -> None:
        """Look at the writers for ever. Cancelling it undoes nothing."""
        while True:
            await self._clock.sleep(self._options.interval_s)
            await self.expire()

    async def expire(self) -> None:
        """Look at all writers once."""
        self._timeline.observe(monotonic_s=self._clock.monotonic_s(), unix_us=self._clock.unix_us())
        after: int | None = 0
        try:
            while after is not None:
                after = await self._expire_page(after)
                await asyncio.sleep(0)  # very many writers must not hold up the appends
        except ServerError as error:
            logger.warning("expiry of writers refused error=%s", error)

    async def _expire_page(self, after: int) -> int | None:
        named_before_us = self._old_before_us(self._options.named_idle_s)
        unnamed_before_us = self._old_before_us(self._options.unnamed_idle_s)
        numbers, further = self._state.idle_writers(
            before_us=max(named_before_us, unnamed_before_us), after=after, count_max=PAGE_COUNT
        )
        if not numbers:
            return further
        facts = self._facts(numbers)
        plan = decide(facts.values(), named_before_us=named_before_us, unnamed_before_us=unnamed_before_us)
        if plan.marked or plan.forgotten:
            await self._control.expire_writers(marked=plan.marked, forgotten=plan.forgotten)
            marks = sum(facts[number].is_named for number in plan.forgotten)
            self.statistics.named_expired_total += len(plan.marked)
            self.statistics.unnamed_expired_total += len(plan.forgotten) - marks
            self.statistics.marks_forgotten_total += marks
            logger.info(
                "writers expired named=%d unnamed=%d marks_forgotten=%d",
                len(plan.marked), len(plan.forgotten) - marks, marks,
            )  # fmt: skip
        return further

    def _facts(self, numbers: list[int]) -> dict[int, WriterFacts]:
        in_flight = self._container.writers_in_flight()
        return {
            number: WriterFacts(
                writer_number=number,
                is_named=bool(writer.writer_id),
                is_busy=number in in_flight or writer.admitted_epoch != writer.epoch,
                active_us=writer.active_us,
                expired_us=writer.expired_us,
            )
            for number in numbers
            if (writer := self._state.writers.get(number)) is not None
        }

    def _old_before_us(self, idle_s: int) -> int:
        return self._timeline.old_before_us(
            idle_s + ACTIVITY_STEP_US / 1e6,
            monotonic_s=self._clock.monotonic_s(),
            last_stamp_us=self._last_stamp_us,
        )
