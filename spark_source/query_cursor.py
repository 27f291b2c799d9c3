"""The cursor of a query on the server: how far it has come, so that its lag shows there and retention waits for it.

The server drops a cursor that was not set for as long as it holds. So a query that is idle sets it again now and then,
and one that is dead holds nothing forever.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final
from uuid import uuid4

from millrace.client.client import Client
from millrace.client.errors import CutTruncatedError, StreamNotFoundError
from millrace.client.transport.clock import SYSTEM_CLOCK, Clock
from millrace.model.cut import StreamCut
from millrace.model.errors import RequestError

from .application import application_name

logger = logging.getLogger(__name__)

RENEWALS_IN_HOLD: Final = 4
RENEWAL_S_MAX: Final = 900.0
"""So that a query that runs stays in the metrics of the server (`MILLRACE_METRICS_CURSOR_SILENCE_S`)."""
_ID_SIZE: Final = 12
TRIES_COUNT_MAX: Final = 3
"""Of moving a cursor to where the stream begins, while that moves away."""


def made_name() -> str:
    """Return a name for a query that was given none: that of its application, if it is known, and a random id."""
    return "-".join(filter(None, ("spark", application_name(), uuid4().hex[:_ID_SIZE])))


class QueryCursor:
    """Moves the cursor of one query, in each of its streams.

    What the server refuses is told in the log, once for each reason: a cursor is no reason to end a query.
    """

    def __init__(self, *, hold_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._hold_s = hold_s
        self._clock = clock
        # Of each stream: under which name where it was set last, and when.
        self._set: dict[str, tuple[str, StreamCut, float]] = {}
        self._refusals: set[str] = set()

    @property
    def is_set(self) -> bool:
        """Whether it was set by this process."""
        return bool(self._set)

    async def move(self, client: Client, name: str, cuts: Mapping[str, StreamCut]) -> None:
        """Let the server know how far the query has come; nothing is asked where it knows. Safe to cancel."""
        await asyncio.gather(*(self._move(client, name, cut) for cut in cuts.values() if self._is_due(name, cut)))

    def _is_due(self, name: str, cut: StreamCut) -> bool:
        last = self._set.get(cut.stream)
        if last is None or last[:2] != (name, cut):
            return True
        return self._clock.monotonic_s() - last[2] >= min(self._hold_s / RENEWALS_IN_HOLD, RENEWAL_S_MAX)

    async def _move(self, client: Client, name: str, cut: StreamCut) -> None:
        place = cut
        for _ in range(TRIES_COUNT_MAX):
            try:
                await client.cursors(cut.stream).set(name, place, hold_s=self._hold_s)
            except CutTruncatedError as error:
                # A truncation has passed the query: what is left begins there.
                place = error.resume_at or await client.stream_cut(cut.stream).head()
            except StreamNotFoundError:
                return  # the next plan of the query says so
            except RequestError as error:
                if str(error) not in self._refusals:
                    self._refusals.add(str(error))
                    logger.warning("cursor not set stream=%s cursor=%s error=%s", cut.stream, name, error)
                return
            else:
                self._set[cut.stream] = name, cut, self._clock.monotonic_s()
                return
