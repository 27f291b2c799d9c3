"""What each number of the statistics is called in Prometheus, and what it says: the one list of them.

Names follow the conventions of Prometheus: `millrace_<part>_<what>_<unit>`, in seconds and bytes, counters end in
`_total`. A number without a unit is a count. The help says what the number means, and what to do about it. A test holds
the list to the statistics of a real server, and the page docs/metrics.md to the list.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Declared(NamedTuple):
    """One metric.

    Attributes:
        name: in Prometheus.
        help: what it means, what to do about it.
    """

    name: str
    help: str

    @property
    def is_counter(self) -> bool:
        """Whether it only rises while the server runs; else it is a gauge."""
        return self.name.endswith("_total")


def _part(part: str, **declared: Declared) -> dict[tuple[str, str], Declared]:
    return {(part, field): Declared(f"millrace_{part}_{name}", text) for field, (name, text) in declared.items()}


STATISTICS: Final[Mapping[tuple[str, str], Declared]] = {
    **_part(
        "server",
        read_only=Declared(
            "read_only",
            "1 while nothing can be stored, since the log failed or has lost content; reads are answered. Alert on it: "
            "/health and the log say why.",
        ),
        segments=Declared("segments", "Segments of users, sealed ones included. Each costs disk, not memory."),
        streams=Declared("streams", "Streams that exist. Idle ones cost disk, not memory."),
        writers=Declared("writers", "Writers that are known; idle ones expire by themselves."),
        exclusive_writers=Declared("exclusive_writers", "Streams that have an exclusive writer; 65,536 at most."),
        connections=Declared(
            "connections",
            "Connections that are open, strangers included. Compare with MILLRACE_FRONT_CONNECTIONS_COUNT_MAX.",
        ),
        strangers=Declared(
            "strangers", "Connections that have not finished their first frame. Many of them: something scans the port."
        ),
        tail_bytes=Declared(
            "tail_bytes",
            "Memory for what is durable and not in tier 2 yet. If it rises to "
            "MILLRACE_CONTAINER_TAIL_SIZE_BYTES_HIGH, tier 2 is too slow, and appends are throttled.",
        ),
        unflushed_segments=Declared(
            "unflushed_segments",
            "Segments with bytes that are not in tier 2 yet. Rises with the segments that are written to.",
        ),
        sequences_refused_total=Declared(
            "sequences_refused_total",
            "Appends refused because events of them may be stored already. Alert on any: a writer was restarted "
            "with wrong sequences.",
        ),
        request_bytes=Declared(
            "request_bytes", "Memory that requests hold. At MILLRACE_FRONT_REQUEST_BYTES_MAX, large requests wait."
        ),
        reader_bytes=Declared(
            "reader_bytes",
            "Memory that readers hold: fetched, or sent and not taken. At MILLRACE_FRONT_READER_BYTES_MAX, slow "
            "readers are ended.",
        ),
        idle_bytes=Declared(
            "idle_bytes",
            "Memory of idle segments, streams and writers, kept to save loads. Bounded by "
            "MILLRACE_CONTAINER_IDLE_BYTES_MAX.",
        ),
        attribute_bytes=Declared(
            "attribute_bytes",
            "Size of the attributes of all segments. At MILLRACE_CONTAINER_ATTRIBUTES_BYTES_MAX, new ones are refused.",
        ),
    ),
    **_part(
        "wal",
        durable_sequence=Declared("durable_sequence", "Number of the last batch of the log that is on the disk."),
        batch_count=Declared("batches_total", "Batches that the log has written: one sync each."),
        written_bytes=Declared("written_bytes_total", "Bytes that the log has written, headers included."),
        queued_bytes=Declared(
            "queued_bytes",
            "Bytes that wait for the log. Above MILLRACE_CONTAINER_QUEUE_SIZE_BYTES_HIGH, clients are throttled: "
            "the disk is too slow.",
        ),
        fullness=Declared(
            "fullness_ratio",
            "Part of its bound that the log has reached, from 0 to 1. Near 1, tier 2 does not keep up, and "
            "appends will be refused.",
        ),
        write_age_s=Declared(
            "write_age_seconds",
            "Age of the write that the disk is at, 0 without one. Above a second the disk stalls, and health says so.",
        ),
        full_files=Declared("full_files", "Log files that are full and still needed, since tier 2 lacks some of it."),
        spare_files=Declared("spare_files", "Log files that are ready to be written. At 0 the log soon has to wait."),
    ),
    **_part(
        "recovery",
        checkpoint_sequence=Declared("checkpoint_sequence", "Batch up to which the last start found a checkpoint."),
        last_sequence=Declared("last_sequence", "Number of the last batch that the last start found in the log."),
        torn_bytes=Declared(
            "torn_bytes", "Size of the incomplete batch that the last start cut off the log. It was never acknowledged."
        ),
        damages=Declared(
            "damages",
            "Damaged ranges of the log that the last start found. Alert on any: `millrace verify` names them.",
        ),
        lost_bytes=Declared(
            "lost_bytes", "How much of the log is missing at most, whose loss nobody has accepted. Alert on any."
        ),
        tail_bytes=Declared("tail_bytes", "Bytes that the last start took from the log, since tier 2 lacked them."),
        duration_s=Declared("duration_seconds", "How long the last start took from opening the folder to serving."),
    ),
    **_part(
        "streams",
        scaling_streams=Declared("scaling_streams", "Streams that scale by themselves."),
        retaining_streams=Declared("retaining_streams", "Streams with a retention policy."),
        splits_total=Declared("splits_total", "Times that a busy segment was split."),
        merges_total=Declared(
            "merges_total",
            "Times that quiet neighbours were merged. If it rises with the splits, the targets are too narrow.",
        ),
        truncations_total=Declared("truncations_total", "Times that retention cut a stream."),
        truncated_bytes_total=Declared("truncated_bytes_total", "Bytes that retention has cut off streams."),
        refusals_total=Declared(
            "refusals_total",
            "Decisions of policies that came too late, or could not be stored; they are taken again. A steady "
            "rise: look at the log.",
        ),
    ),
    **_part(
        "writers",
        named_expired_total=Declared(
            "named_expired_total",
            "Writers with a name that were idle for too long. One that comes back may store an event twice.",
        ),
        unnamed_expired_total=Declared("unnamed_expired_total", "Writers without a name that were idle for too long."),
        marks_forgotten_total=Declared(
            "marks_forgotten_total",
            "Expired writers with a name of which now nothing is known at all, since there were too many.",
        ),
    ),
    **_part(
        "transactions",
        open=Declared("open", "Transactions that are open, prepared ones included. Compare with their bounds."),
        prepared=Declared(
            "prepared",
            "Transactions that are prepared: they never expire, and wait for somebody to commit or abort them.",
        ),
        open_parts=Declared(
            "open_parts",
            "Segments of open transactions, all in memory. Compare with MILLRACE_TRANSACTIONS_OPEN_PARTS_COUNT_MAX.",
        ),
        oldest_age_s=Declared(
            "oldest_age_seconds",
            "Age of the oldest open transaction. An hour or more: a coordinator has left it prepared.",
        ),
        outcomes=Declared("outcomes", "Transactions that have ended and whose outcome can still be asked for."),
        producers=Declared(
            "producers", "Producers that are known. At MILLRACE_TRANSACTIONS_PRODUCERS_COUNT_MAX, new ones are refused."
        ),
        committed_total=Declared(
            "committed_total",
            "Transactions that were committed. At 0 while some are open: nobody finishes what is begun.",
        ),
        aborted_total=Declared(
            "aborted_total", "Transactions that their clients aborted. A steady rise: look at what fails in them."
        ),
        expired_total=Declared(
            "expired_total",
            "Transactions aborted because their lease ran out. A steady rise: clients end without aborting.",
        ),
    ),
    **_part(
        "front",
        connections_total=Declared(
            "connections_total", "Connections that were accepted. A fast rise: clients reconnect."
        ),
        shed_total=Declared(
            "shed_total",
            "Connections turned away: there were too many, or the server was not ready. Alert if it keeps rising.",
        ),
        strangers_shed_total=Declared(
            "strangers_shed_total",
            "Connections ended before their first frame, to make room for others: something scans the port.",
        ),
        protocol_errors_total=Declared(
            "protocol_errors_total", "Connections ended because the peer broke the protocol. The log names the peer."
        ),
        foreign_protocol_total=Declared(
            "foreign_protocol_total",
            "Of these, the ones that spoke HTTP or TLS to the data port: the address of a client is wrong.",
        ),
        frames_total=Declared("frames_total", "Frames received, appends not included."),
        appends_total=Declared("appends_total", "Appends received; each holds one event or a block of them."),
        received_bytes_total=Declared(
            "received_bytes_total", "Bytes received from clients, headers of frames included."
        ),
        sent_data_bytes_total=Declared(
            "sent_data_bytes_total", "Bytes of segments sent to readers, headers of frames not included."
        ),
        throttled_total=Declared(
            "throttled_total",
            "Times that a client was told to wait: log or tail were full. Alert if it keeps rising: disk or tier "
            "2 is too slow.",
        ),
        requests_delayed_total=Declared(
            "requests_delayed_total",
            "Times that a request waited for memory. If it keeps rising, raise MILLRACE_FRONT_REQUEST_BYTES_MAX.",
        ),
        reads_delayed_total=Declared(
            "reads_delayed_total",
            "Times that a read waited for memory. If it keeps rising, raise MILLRACE_FRONT_READER_BYTES_MAX.",
        ),
        readers_ended_total=Declared(
            "readers_ended_total",
            "Connections ended because they took nothing while others had no memory to read. Their clients resume.",
        ),
        requests_failed_total=Declared(
            "requests_failed_total",
            "Requests answered with an error, appends included. Some are normal: what does not exist, a condition "
            "that failed.",
        ),
    ),
    **_part(
        "feed",
        open=Declared("open", "Feeds that are open. At MILLRACE_FEED_COUNT_MAX, further ones are refused."),
        opened_total=Declared(
            "opened_total",
            "Feeds that were opened. A fast rise: their peers reconnect, and may be cut for taking nothing.",
        ),
        refused_total=Declared(
            "refused_total",
            "Requests for a feed that got an error instead: too many are open, or the stream cannot be read.",
        ),
        events_total=Declared("events_total", "Events sent to all feeds, each as often as feeds have it."),
    ),
    **_part(
        "cache",
        budget_bytes=Declared("budget_bytes", "Most that the cache of catch-up reads may hold: its setting."),
        size_bytes=Declared("size_bytes", "What the cache of catch-up reads holds."),
        protected_bytes=Declared("protected_bytes", "Of this, what was read more than once, and is evicted last."),
        extent_count=Declared("extents", "Ranges of segments that the cache holds."),
        fetch_count=Declared("fetches_in_progress", "Fetches from tier 2 that run or wait for their turn."),
        unread_bytes=Declared("unread_bytes", "Bytes fetched ahead, or on their way, that nobody has read yet."),
        hits_total=Declared("hits_total", "Reads answered from the cache alone."),
        misses_total=Declared("misses_total", "Reads that had to wait for tier 2."),
        joins_total=Declared("joins_total", "Reads that waited for a fetch which was under way already."),
        fetches_total=Declared("fetches_total", "Fetches from tier 2, those made ahead included."),
        fetches_ahead_total=Declared("fetches_ahead_total", "Fetches made ahead of a reader that reads in order."),
        fetch_failures_total=Declared(
            "fetch_failures_total",
            "Fetches from tier 2 that failed: it cannot be read, or a chunk is damaged. Alert on it.",
        ),
        fetched_bytes_total=Declared(
            "fetched_bytes_total", "Bytes fetched from tier 2, those that nobody reads included."
        ),
        evicted_bytes_total=Declared("evicted_bytes_total", "Bytes that left the cache to make room."),
        evicted_unread_bytes_total=Declared(
            "evicted_unread_bytes_total",
            "Bytes fetched ahead and evicted before anybody read them: raise MILLRACE_CACHE_BUDGET_BYTES.",
        ),
    ),
}
"""By part and field of `Server.statistics`; texts and what is None are no metrics."""
