"""Lets idle writers expire: looks at the writers once a minute, a page at a time.

A page is looked at, decided on and put on its way into the log in one step, so nothing can come between. A record that
is refused, or lost with the server, is decided anew at the next look.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from millrace.server.container.checkpoint_archive import WriterArchive
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
    """Lets the idle writers of one container expire. Made when the container was opened, before writers come.

    Args:
        archive: the writers of the checkpoint.
    """

    def __init__(
        self,
        *,
        container: SegmentContainer,
        control: SegmentControl,
        archive: WriterArchive,
        options: WritersOptions,
    ) -> None:
        self._container = container
        self._state = container.state
        self._control = control
        self._archive = archive
        self._clock = container.clock
        self._options = options
        self._started_us = self._clock.unix_us()
        self._timeline = Timeline(monotonic_s=self._clock.monotonic_s(), unix_us=self._started_us)
        self._last_stamp_us: int | None = None
        self.statistics = WritersStatistics()

    async def run(self) -> None:
        """Look at the writers for ever. Cancelling it undoes nothing."""
        while True:
            await self._clock.sleep(self._options.interval_s)
            await self.expire()

    async def _load(self) -> int:
        """Return when writers were active last, before we started.

        Writers of an earlier process were silent from their last stamp up to this one; what then passed until we
        started, no clock can tell from a jump.
        """
        unstored = [writer.active_us for writer in self._state.writers.unstored if writer.active_us <= self._started_us]
        stored_us = await asyncio.to_thread(self._archive.last_activity_us, until_us=self._started_us)
        return max([stored_us, *unstored])

    async def expire(self) -> None:
        """Look at all writers once."""
        self._timeline.observe(monotonic_s=self._clock.monotonic_s(), unix_us=self._clock.unix_us())
        try:
            if self._last_stamp_us is None:
                self._last_stamp_us = await self._load()
            unstored = [writer.writer_number for writer in self._state.writers.unstored]
            for start in range(0, len(unstored), PAGE_COUNT):
                await self._expire_idle(unstored[start : start + PAGE_COUNT])
            after = 0
            while numbers := await asyncio.to_thread(
                self._archive.idle, before_us=max(self._bounds_us()), after=after, count_max=PAGE_COUNT
            ):
                after = numbers[-1]
                await self._expire_idle(numbers)
        except ServerError as error:
            logger.warning("expiry of writers refused error=%s", error)

    async def _expire_idle(self, numbers: list[int]) -> None:
        """Let those of some writers expire that are idle."""
        _held = await self._container.bringer.bring(writers=numbers)
        named_before_us, unnamed_before_us = self._bounds_us()
        facts = self._facts(numbers)
        plan = decide(facts.values(), named_before_us=named_before_us, unnamed_before_us=unnamed_before_us)
        if not (plan.marked or plan.forgotten):
            return
        await self._control.expire_writers(marked=plan.marked, forgotten=plan.forgotten)
        marks = sum(facts[number].is_named for number in plan.forgotten)
        self.statistics.named_expired_total += len(plan.marked)
        self.statistics.unnamed_expired_total += len(plan.forgotten) - marks
        self.statistics.marks_forgotten_total += marks
        logger.info(
            "writers expired named=%d unnamed=%d marks_forgotten=%d",
            len(plan.marked), len(plan.forgotten) - marks, marks,
        )  # fmt: skip

    def _bounds_us(self) -> tuple[int, int]:
        """Return before when named, and unnamed, writers must have been active last to expire."""
        return self._old_before_us(self._options.named_idle_s), self._old_before_us(self._options.unnamed_idle_s)

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
            last_stamp_us=self._last_stamp_us or 0,
        )
