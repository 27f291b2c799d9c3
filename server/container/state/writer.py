"""The state of one writer in memory."""

from dataclasses import dataclass, field
from typing import Final

from millrace.wire import messages as m

from .sequences import StreamProgress

NONCES_KEPT: Final = 4
"""So many openings later, a request that was under way for so long is taken for a new opening."""
WRITER_SIZE_BYTES: Final = 800
STREAM_SIZE_BYTES: Final = 1200
PIECE_SIZE_BYTES: Final = 160
"""Memory of a writer, of a stream that it has sequences on, and of a piece of its row there (measured, rounded up)."""


@dataclass(slots=True, kw_only=True, eq=False)
class Writer:
    """A writer: its number forever, its epoch now; or the mark that is left of a named one that has expired.

    A number identifies what was stored under it: after the expiry its name continues under another number, and under
    epochs above those before.

    Attributes:
        writer_id: empty for an unnamed one.
        active_us: its last durable append or open, by the wall clock; moved only once in `ACTIVITY_STEP_US`.
        expired_us: when its state expired, by the wall clock; 0 while it has not.
        seen_uptime_us: the uptime that was counted when it was active or expired last: its age, which no clock changes.
        nonces: of the requests that opened it last, the newest at the end: one that comes again is no other opening.
        streams: how far it is on each stream that it was opened for, if it has a name.
    """

    writer_number: int
    writer_id: str
    epoch: int
    opened_us: int
    active_us: int = 0
    expired_us: int = 0
    seen_uptime_us: int = 0
    nonces: bytes = b""
    streams: dict[int, StreamProgress] = field(default_factory=dict)
    admitted_epoch: int = field(init=False)
    admitted_nonces: bytes = field(init=False)

    def __post_init__(self) -> None:
        """Begin with the admitted view of the durable one."""
        self.active_us = self.active_us or self.opened_us
        self.admit_as_durable()

    def on_stream(self, stream_id: int) -> StreamProgress:
        """Return how far it is on a stream, from now on also where it never was."""
        progress = self.streams.get(stream_id)
        if progress is None:
            progress = self.streams[stream_id] = StreamProgress(stream_id)
        return progress

    def admit_as_durable(self) -> None:
        """Let the admitted view be the durable one: nothing is queued."""
        self.admitted_epoch = self.epoch
        self.admitted_nonces = self.nonces
        for progress in self.streams.values():
            progress.admit_as_durable()

    @property
    def memory_bytes(self) -> int:
        """About how much memory this takes."""
        pieces = sum(progress.durable.row.piece_count for progress in self.streams.values())
        return (
            WRITER_SIZE_BYTES + len(self.writer_id) + STREAM_SIZE_BYTES * len(self.streams) + PIECE_SIZE_BYTES * pieces
        )


def with_nonce(nonces: bytes, nonce: bytes) -> bytes:
    """Return the nonces that are remembered after an opening."""
    return (nonces + nonce)[-NONCES_KEPT * len(m.NO_NONCE) :]


def is_among(nonces: bytes, nonce: bytes) -> bool:
    """Return whether a nonce is remembered; zeros, which are none, never are."""
    size = len(nonce)
    return nonce != m.NO_NONCE and nonce in (nonces[start : start + size] for start in range(0, len(nonces), size))
