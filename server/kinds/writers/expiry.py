"""Lets idle writers expire: visits them whenever uptime is recorded, a page at a time.

A page is read, decided on and put on its way into the log in one step, so nothing can come between. A record that
is refused, or lost with the server, is decided again at the next visit.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from millrace.server.container.container import SegmentContainer
from millrace.server.errors import ServerError
from millrace.wire import messages as m

from .commands import WriterCommands
from .expiry_plan import Borders, borders, decide
from .options import WritersOptions
from .tables import WriterArchive
from .uptime import Uptime

logger = logging.getLogger(__name__)

PAGE_COUNT: Final = 1000
"""Writers visited in one step: about a millisecond, and no more numbers than that in one record."""


@dataclass(slots=True)
class WritersStatistics:
    """Writers that expired since the server started."""

    named_expired_total: int = 0
    unnamed_expired_total: int = 0
    marks_forgotten_total: int = 0


class WriterExpiryLoop:
    """Lets the idle writers of one container expire. Made when the container was opened.

    Args:
        archive: the writers of the checkpoint.
        uptime: is recorded here.
    """

    def __init__(
        self,
        *,
        container: SegmentContainer,
        writers: WriterCommands,
        archive: WriterArchive,
        uptime: Uptime,
        options: WritersOptions,
    ) -> None:
        self._container = container
        self._state = container.state
        self._writers = writers
        self._archive = archive
        self._options = options
        self._uptime = uptime
        self.statistics = WritersStatistics()

    async def run(self) -> None:
        """Visit the writers until it is cancelled, which undoes nothing."""
        while True:
            await self._container.clock.sleep(self._uptime.record_interval_s)
            await self.expire()

    async def expire(self) -> None:
        """Record the uptime, and check all writers once."""
        try:
            await self._uptime.record()
            limits = borders(
                self._options,
                uptime_us=self._uptime.now_us(),
                marks_kept_from_us=await asyncio.to_thread(
                    self._archive.marks_seen_from, newest_count=self._options.marks_count_max
                ),
            )
            unstored = [writer.writer_number for writer in self._state.writers.unstored]
            for start in range(0, len(unstored), PAGE_COUNT):
                await self.expire_page(unstored[start : start + PAGE_COUNT], limits)
            after = 0
            while numbers := await asyncio.to_thread(
                self._archive.idle,
                before_uptime_us=max(limits.named_us, limits.unnamed_us),
                marks_before_uptime_us=limits.marks_us,
                after=after,
                count_max=PAGE_COUNT,
            ):
                after = numbers[-1]
                await self.expire_page(numbers, limits)
        except ServerError as error:
            logger.warning("expiry of writers refused error=%s", error)

    async def expire_page(self, numbers: list[int], limits: Borders) -> None:
        """Let those of some writers expire that are idle: at most a page of them, which is a record."""
        with await self._container.loader.pin(m.Required(writers=numbers)):
            writers = {number: writer for number in numbers if (writer := self._state.writers.get(number)) is not None}
            plan = decide(writers.values(), limits, busy=self._container.in_flight.writers())
            if plan.marked or plan.forgotten:
                await self._writers.expire(marked=plan.marked, forgotten=plan.forgotten)
                marks = sum(bool(writers[number].writer_id) for number in plan.forgotten)
                self.statistics.named_expired_total += len(plan.marked)
                self.statistics.unnamed_expired_total += len(plan.forgotten) - marks
                self.statistics.marks_forgotten_total += marks
                logger.info(
                    "writers expired named=%d unnamed=%d marks_forgotten=%d",
                    len(plan.marked), len(plan.forgotten) - marks, marks,
                )  # fmt: skip
