"""Forgets producers that have committed nothing, after their last transaction ended without a commit.

Nothing is lost with such a producer: a run that begins as it later begins a new producer, and none of its sequences is
committed. A producer whose run was replaced stays, since an earlier holder may have committed sequences, and its runs
have to stay fenced.
"""

import asyncio
from itertools import islice
from typing import Final

from millrace.server.container.container import SegmentContainer
from millrace.wire import messages as m

from .commands import ProducerCommands
from .row import released_of
from .tables import ProducerArchive

FORGOTTEN_COUNT_MAX: Final = 1000
"""In one record."""


class UnusedProducers:
    """The producers of one container that may have to be forgotten. Made when the container was opened.

    Args:
        archive: the producers of the checkpoint.
    """

    def __init__(self, container: SegmentContainer, producers: ProducerCommands, archive: ProducerArchive) -> None:
        self._container = container
        self._producers = producers
        self._archive = archive
        self._is_archive_searched = False

    async def forget(self) -> None:
        """Forget what is unused now; an error changes nothing, and the next call continues.

        Raises:
            ServerError: the log or the checkpoint failed.
        """
        released = released_of(self._container.state)
        if not self._is_archive_searched:
            # A server may have ended between the end of a transaction and the record that forgets its producer.
            released.update(await asyncio.to_thread(self._archive.unused))
            self._is_archive_searched = True
        while released:
            page = list(islice(released, FORGOTTEN_COUNT_MAX))
            with await self._container.loader.pin(m.Required(producers=page)):
                unused = self._producers.unused(page)
                decision = self._producers.forget(unused) if unused else None
                released.difference_update(page)
                if decision is not None:
                    await decision.durable()
