"""Settings of a container."""

from dataclasses import dataclass

from millrace.server.bounds import demand, demand_above_zero, demand_at_least
from millrace.wire.limits import GIB, KIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOptions:
    """Bounds and rhythms of a container; checked when made.

    Attributes:
        flush_size_bytes: when a segment has this many bytes that are not in tier 2 yet, they are moved there at once.
        flush_age_s: new bytes are moved to tier 2 after about this time.
        small_flushes_per_s_max: how many tails below flush_size_bytes are flushed for their age in a second. If more
            are old enough, the oldest go first, and the others wait longer. 0: no bound.
        chunk_size_bytes_max: the largest chunk (a file of tier 2); a single append may be larger.
        chunk_size_bytes_small: smaller chunks at the end of a segment are written again later, together with newer
            bytes; merged segments that are smaller share chunks.
        flushes_at_once: how many chunks are written at the same time.
        tail_size_bytes_high: when this many bytes in memory wait for tier 2, appends are slowed down; at twice as much
            they are refused.
        tail_size_bytes_low: below this, appends are no longer slowed down.
        queue_size_bytes_high: when this many bytes wait for the log, appends are slowed down; at twice as much they are
            refused.
        queue_size_bytes_low: below this, appends are no longer slowed down.
        checkpoint_interval_s: how often a checkpoint is stored, if anything has changed.
        copy_interval_s: how often the checkpoint is copied to tier 2, if it has changed; 0: when that frees something.
            `millrace restore` finds nothing that was flushed after the last copy, so 0 means a minute if the history is
            in an object store.
        garbage_interval_s: how often chunks that nothing refers to any more are deleted.
        orphan_grace_s: how long after a start the server deletes chunks that belong to no segment.
        idle_bytes_max: how much memory idle segments, streams and writers may use together, about 4 KB for a stream;
            all others are only on disk.
        attributes_segment_bytes_max: the largest size of the attributes of one segment: keys, values, and 256 bytes for
            each; larger requests are refused.
        attributes_bytes_max: the largest size of the attributes of all segments; larger requests are refused.
        transaction_size_bytes_max: the largest transaction; further events are refused, and it can still be committed.
        verified_at_once_count_max: a checkpoint with more rows is verified by its sums at the start, and row by row
            later.
    """

    flush_size_bytes: int = 8 * MIB
    flush_age_s: float = 5.0
    small_flushes_per_s_max: float = 0.0
    chunk_size_bytes_max: int = 32 * MIB
    chunk_size_bytes_small: int = 256 * KIB
    flushes_at_once: int = 2
    tail_size_bytes_high: int = 512 * MIB
    tail_size_bytes_low: int = 384 * MIB
    queue_size_bytes_high: int = 64 * MIB
    queue_size_bytes_low: int = 32 * MIB
    checkpoint_interval_s: float = 10.0
    copy_interval_s: float = 0.0
    garbage_interval_s: float = 60.0
    orphan_grace_s: float = 3600.0
    idle_bytes_max: int = 128 * MIB
    attributes_segment_bytes_max: int = 1 * MIB
    attributes_bytes_max: int = 256 * MIB
    transaction_size_bytes_max: int = 64 * GIB
    verified_at_once_count_max: int = 100_000

    def __post_init__(self) -> None:
        self._demand_low_and_high("flush_size_bytes", "chunk_size_bytes_max")
        self._demand_low_and_high("tail_size_bytes_low", "tail_size_bytes_high")
        self._demand_low_and_high("queue_size_bytes_low", "queue_size_bytes_high")
        demand_at_least(self, 1, "flushes_at_once")
        demand_at_least(
            self, 0, "chunk_size_bytes_small", "idle_bytes_max", "verified_at_once_count_max",
            "attributes_segment_bytes_max", "attributes_bytes_max",
            "flush_age_s", "small_flushes_per_s_max", "checkpoint_interval_s", "copy_interval_s", "garbage_interval_s",
            "orphan_grace_s",
        )  # fmt: skip
        demand_above_zero(self, "transaction_size_bytes_max")

    def _demand_low_and_high(self, low: str, high: str) -> None:
        demand(0 < getattr(self, low) <= getattr(self, high), self, low, f"above 0 and at most {high}")
