"""Which streams have an exclusive writer, from which alone they take appends.

There are two views, as of a segment: the *admitted* one decides about new appends and openings, the *durable* one is
told, and is what a checkpoint stores. What ends a stream, or a writer, ends this too, by the same record.

All of it is in memory, so that an append is checked without loading anything, and a stream without an exclusive writer
costs nothing; how many there may be is bounded.
"""

from collections.abc import Collection, Mapping
from typing import Final

from millrace.model.exclusive_writer import ExclusiveWriter
from millrace.server.container.dirty_set import DirtySet

EXCLUSIVE_WRITERS_COUNT_MAX: Final = 65_536
"""Streams of one container that may have an exclusive writer; each takes about 400 bytes of memory."""


class ExclusiveWriters:
    """The exclusive writers of the streams of one container, by stream id.

    Args:
        stored: those that the last checkpoint has.

    Attributes:
        admitted, durable: the two views; changed by the methods only.
        unstored: streams of which the last checkpoint does not have what is durable.
    """

    __slots__ = ("admitted", "durable", "unstored")

    def __init__(self, stored: Mapping[int, ExclusiveWriter]) -> None:
        self.durable = dict(stored)
        self.admitted = dict(stored)
        self.unstored: DirtySet[int] = DirtySet()

    def admit_as_durable(self) -> None:
        """Let the admitted view be the durable one: nothing is queued."""
        self.admitted = dict(self.durable)

    # --- what is admitted ---

    def admit(self, stream_id: int, writer: ExclusiveWriter) -> None:
        """Let a stream have this writer, whose opening is queued."""
        self.admitted[stream_id] = writer

    def admit_release(self, stream_id: int) -> None:
        """Let a stream have none, since its release is queued."""
        del self.admitted[stream_id]

    def admit_expiry(self, writer_numbers: Collection[int]) -> None:
        """Let the streams of these writers have none, since the expiry of the writers is queued."""
        for stream_id in _held_by(self.admitted, writer_numbers):
            del self.admitted[stream_id]

    # --- what is durable: called by the fold ---

    def store(self, stream_id: int, writer: ExclusiveWriter) -> None:
        """Let a stream have this writer; what it had before ends."""
        self.durable[stream_id] = writer
        self.unstored.add(stream_id)

    def release(self, stream_id: int, *, number: int, epoch: int) -> None:
        """Let a stream have none, if it has this one."""
        writer = self.durable.get(stream_id)
        if writer is not None and (writer.number, writer.epoch) == (number, epoch):
            self._forget(stream_id)

    def end_stream(self, stream_id: int) -> None:
        """Forget the writer of a stream that takes no appends any more. Nothing was admitted since that was queued."""
        self.admitted.pop(stream_id, None)
        if stream_id in self.durable:
            self._forget(stream_id)

    def expire(self, writer_numbers: Collection[int]) -> None:
        """Let the streams of these writers, which have expired, have none."""
        for stream_id in _held_by(self.durable, writer_numbers):
            self._forget(stream_id)

    def _forget(self, stream_id: int) -> None:
        del self.durable[stream_id]
        self.unstored.add(stream_id)


def _held_by(writers: Mapping[int, ExclusiveWriter], numbers: Collection[int]) -> list[int]:
    return [stream_id for stream_id, writer in writers.items() if writer.number in numbers]
