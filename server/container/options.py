"""Settings of a container."""

from dataclasses import dataclass

from millrace.server.bounds import demand, demand_above_zero, demand_at_least
from millrace.wire.limits import GIB, KIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOptions:
    """Bounds and rhythms of a container; checked when made.

    Attributes:
        flush_size_bytes: a segment with that much outside tier 2 is flushed at once.
        flush_age_s: bytes wait about so long for their way to tier 2.
        chunk_size_bytes_max: the largest payload of one chunk, but for a single larger append.
        chunk_size_bytes_small: last chunks below this are written again together with what follows them, once that is
            as long; merged segments below this share chunks.
        flushes_at_once: chunks that are written at the same time.
        tail_size_bytes_high: appends are throttled when so much waits in memory for tier 2, and refused at twice as
            much.
        tail_size_bytes_low: appends are no longer throttled when less than this waits in memory for tier 2.
        queue_size_bytes_high: appends are throttled when so much waits for the log, and refused at twice as much.
        queue_size_bytes_low: appends are no longer throttled when less than this waits for the log.
        checkpoint_interval_s: a checkpoint is made at least so often, if anything changed.
        garbage_interval_s: how often chunks that nothing refers to any more are deleted.
        orphan_grace_s: how long after a start a chunk that no segment knows is deleted.
        idle_bytes_max: idle segments, streams and writers stay in memory up to this, all together: about 4 KB a stream,
            more where they hold much; the others are in the checkpoint.
        attributes_segment_bytes_max: attributes of one segment: keys, values, and 256 bytes for each; a request that
            would pass it is refused.
        attributes_bytes_max: attributes of all segments; a request that would pass it is refused.
        transaction_size_bytes_max: events of one transaction; more are refused, and what it has can still be committed.
        verified_at_once_count_max: a checkpoint of more rows is verified by its sums at the start, and row by row
            while it serves.
    """

    flush_size_bytes: int = 8 * MIB
    flush_age_s: float = 5.0
    chunk_size_bytes_max: int = 32 * MIB
    chunk_size_bytes_small: int = 256 * KIB
    flushes_at_once: int = 2
    tail_size_bytes_high: int = 512 * MIB
    tail_size_bytes_low: int = 384 * MIB
    queue_size_bytes_high: int = 64 * MIB
    queue_size_bytes_low: int = 32 * MIB
    checkpoint_interval_s: float = 10.0
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
            "flush_age_s", "checkpoint_interval_s", "garbage_interval_s", "orphan_grace_s",
        )  # fmt: skip
        demand_above_zero(self, "transaction_size_bytes_max")

    def _demand_low_and_high(self, low: str, high: str) -> None:
        demand(0 < getattr(self, low) <= getattr(self, high), self, low, f"above 0 and at most {high}")
