"""Settings of a container."""

from dataclasses import dataclass

from millrace.server.errors import ConfigurationError
from millrace.wire.limits import GIB, KIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOptions:
    """Bounds and rhythms of a container; checked when made.

    Attributes:
        flush_size_bytes: a segment with that much unflushed is flushed at once.
        flush_age_s: bytes wait no longer than about this for their way to tier 2.
        chunk_size_bytes_max: the largest payload of one chunk, but for a single larger append.
        chunk_size_bytes_small: last chunks below this are written again together with what follows them, once that is
            as long; merged segments below this share chunks.
        flushes_at_once: chunks that are written at the same time.
        tail_size_bytes_high: with more than this in memory, connections are throttled: no further append is read from
            them. What they had sent is still taken, up to twice as much in memory; beyond that appends are refused.
        tail_size_bytes_low: with less than this in memory again, they are read.
        queue_size_bytes_high, queue_size_bytes_low: the same for what waits for the log.
        checkpoint_interval_s: at least this often, if anything changed.
        garbage_interval_s: chunks that were written again are deleted about this often.
        orphan_grace_s: a chunk in tier 2 that no segment knows is deleted after this long.
        idle_bytes_max: idle segments, streams and writers are held in memory up to about this, all together.
        attributes_segment_bytes_max: attributes of one segment, with 256 bytes for each beside key and value.
        attributes_bytes_max: attributes of all segments.
        transaction_size_bytes_max: events of one transaction.
        verified_at_once_count_max: a checkpoint of more rows is verified in the background after a start.
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
        if not 0 < self.flush_size_bytes <= self.chunk_size_bytes_max:
            raise ConfigurationError("flush_size_bytes must be above 0 and at most chunk_size_bytes_max")
        if not 0 < self.tail_size_bytes_low <= self.tail_size_bytes_high:
            raise ConfigurationError("tail_size_bytes_low must be above 0 and at most tail_size_bytes_high")
        if not 0 < self.queue_size_bytes_low <= self.queue_size_bytes_high:
            raise ConfigurationError("queue_size_bytes_low must be above 0 and at most queue_size_bytes_high")
        if self.flushes_at_once < 1 or self.chunk_size_bytes_small < 0:
            raise ConfigurationError("flushes_at_once must be at least 1, chunk_size_bytes_small at least 0")
        if self.idle_bytes_max < 0 or self.verified_at_once_count_max < 0:
            raise ConfigurationError("idle_bytes_max and verified_at_once_count_max must not be negative")
        if min(self.attributes_segment_bytes_max, self.attributes_bytes_max) < 0:
            raise ConfigurationError("attributes_segment_bytes_max and attributes_bytes_max must not be negative")
        if self.transaction_size_bytes_max <= 0:
            raise ConfigurationError("transaction_size_bytes_max must be above 0")
        if min(self.flush_age_s, self.checkpoint_interval_s, self.garbage_interval_s, self.orphan_grace_s) < 0:
            raise ConfigurationError("times must not be negative")
