"""Reports to the server below which sequence all events of a writer are stored, if no later block reports it.

Without it nothing is lost or duplicated: the next writer of the id would only find a lower `stored_through`, and the
server would keep more marks. So nobody waits for it, and a failed notice is dropped.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from millrace.client.transport.channel import Channel
from millrace.model.errors import MillraceError
from millrace.wire import messages as m

from .opening import Opening

logger = logging.getLogger(__name__)

IDLE_S: Final = 0.1
"""A writer reports after it had nothing to send for this long."""


class StoredNotice:
    """The notices of one writer.

    Args:
        stored_below: returns the sequence below which everything is stored, or None while something is in flight.
    """

    def __init__(self, channel: Channel, opening: Opening, *, stored_below: Callable[[], int | None]) -> None:
        self._channel = channel
        self._opening = opening
        self._stored_below = stored_below
        # The sequence that the server knows.
        self._told = opening.sequences.stored_below(None)
        self._task: asyncio.Task[None] | None = None

    def fell_idle(self) -> None:
        """Report after a while, if the writer is still idle then."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._tell_later(), name="writer tells what it has stored")

    def tell_now(self) -> None:
        """Report at once, without an answer: the writer ends."""
        below = self._stored_below()
        connection = self._channel.live
        if below is None or below <= self._told or connection is None:
            return
        try:
            # Written at once, so that it is sent before the connection is closed.
            connection.send_request(self._message(below)).add_done_callback(_forget)
        except MillraceError as error:
            logger.debug("stored sequences not reported error=%s", error)

    def stop(self) -> None:
        """Stop reporting."""
        if self._task is not None:
            self._task.cancel()

    async def _tell_later(self) -> None:
        await self._channel.clock.sleep(IDLE_S)
        below = self._stored_below()
        if below is None or below <= self._told:
            return
        try:
            await self._channel.request(self._message(below))
        except MillraceError as error:
            logger.debug("stored sequences not reported error=%s", error)
        else:
            self._told = below

    def _message(self, stored_below: int) -> m.TellStored:
        opening = self._opening
        return m.TellStored(opening.number, opening.epoch, opening.stream_id, stored_below)


def _forget(reply: "asyncio.Future[Any]") -> None:
    if not reply.cancelled():
        reply.exception()
