"""Segment bytes to events, however the bytes are cut on their way."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millrace.model.block_layout import BLOCK_HEADER_SIZE_BYTES
from millrace.model.block_scan import fields_at
from millrace.model.event_block import unpack_block

from .workload import EVENT, events_in

_NONE: Final[npt.NDArray[Any]] = np.zeros(0, EVENT)


class RecordStream:
    """The events of one segment from its head on; `blocks` says whether they are in event blocks."""

    def __init__(self, *, event_size: int, blocks: bool) -> None:
        self._event_size = event_size
        self._blocks = blocks
        self._pending = bytearray()

    def feed(self, data: memoryview) -> npt.NDArray[Any]:
        """Return the heads of the events that are whole now.

        Raises:
            BlockCorruptError: the bytes are no event blocks.
        """
        pending = self._pending
        pending += data
        if self._blocks:
            return self._whole_blocks()
        whole = len(pending) // self._event_size * self._event_size
        heads = events_in(pending[:whole], self._event_size)
        del pending[:whole]
        return heads

    @property
    def pending_bytes(self) -> int:
        """Bytes of an event, or a block, that is not whole yet."""
        return len(self._pending)

    def _whole_blocks(self) -> npt.NDArray[Any]:
        data = bytes(self._pending)
        view = memoryview(data)
        found, start = [], 0
        while len(data) - start >= BLOCK_HEADER_SIZE_BYTES:
            end = start + fields_at(view, start).size
            if end > len(data):
                break
            found.append(events_in(unpack_block(view[start:end]).value_data, self._event_size))
            start = end
        del self._pending[:start]
        return np.concatenate(found) if found else _NONE
