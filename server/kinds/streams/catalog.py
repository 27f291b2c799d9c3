"""Indexes of streams that scale, that have retention, and by tag.

A server may hold a million idle streams; what is done every few seconds must not visit each. What configurations ask
for becomes labels (`container.state.labels`), by which the checkpoint finds streams as it finds them by name. At the
start the few that scale or forget are looked up; what changes since then is told by the state.
"""

import asyncio
from functools import partial
from typing import Final

from millrace.server.container.loader import page_of_names
from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.labels import LABEL_RETAINS, LABEL_SCALES, labels_of, tag_label

from .tables import StreamArchive

PAGE_COUNT: Final = 1000


class Catalog:
    """The streams of a container by what their configurations ask for. `load` comes first.

    Args:
        state: of the container.
        archive: the streams of its checkpoint.
    """

    def __init__(self, state: ContainerState, archive: StreamArchive) -> None:
        self._state = state
        self._archive = archive
        self._ids: dict[str, set[int]] = {LABEL_SCALES: set(), LABEL_RETAINS: set()}

    @property
    def scaling(self) -> set[int]:
        """Ids of the streams that scale by themselves; not to be changed."""
        self._catch_up()
        return self._ids[LABEL_SCALES]

    @property
    def retaining(self) -> set[int]:
        """Ids of the streams with a retention policy; not to be changed."""
        self._catch_up()
        return self._ids[LABEL_RETAINS]

    async def load(self) -> None:
        """Look up what the checkpoint has.

        Raises:
            StorageError: the checkpoint cannot be read.
        """
        for label, ids in self._ids.items():
            after = ""
            while found := await asyncio.to_thread(
                self._archive.labelled, label, prefix="", after=after, count_max=PAGE_COUNT
            ):
                ids.update(stream_id for _, stream_id in found)
                after = found[-1][0]

    async def with_cursors(self) -> list[int]:
        """Return the ids of the streams that have cursors in the checkpoint.

        Raises:
            StorageError: the checkpoint cannot be read.
        """
        return await asyncio.to_thread(self._archive.with_cursors)

    async def names_with_tag(self, tag: str, *, prefix: str, after: str, count_max: int) -> tuple[list[str], bool]:
        """Return a page of the names of the streams with a tag, above `after`, and whether more follow.

        Raises:
            StorageError: the checkpoint cannot be read.
        """
        label = tag_label(tag)
        return await page_of_names(
            self._state.streams,
            partial(self._archive.labelled, label),
            prefix=prefix,
            after=after,
            count_max=count_max,
            is_wanted=lambda stream: label in labels_of(stream.configuration),
        )

    def _catch_up(self) -> None:
        """Take in the streams that were created, reconfigured or deleted."""
        changed = self._state.reconfigured_streams
        while changed:
            stream_id, configuration = changed.popitem()
            labels = [] if configuration is None else labels_of(configuration)
            for label, ids in self._ids.items():
                if label in labels:
                    ids.add(stream_id)
                else:
                    ids.discard(stream_id)
