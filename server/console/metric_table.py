"""The Prometheus name and help of each number in the statistics.

Names follow the conventions of Prometheus: `millrace_<part>_<what>_<unit>`, in seconds and bytes, counters end in
`_total`. A number without a unit is a count. The help says what the number means, and what to do about it. A test holds
the list to the statistics of a real server, and the page docs/metrics.md to the list. The metrics of what kinds count
are declared with the kinds.
"""

from typing import Final

from millrace.server.container.kind import Kinds
from millrace.server.host.metric_help import Figures, MetricHelp, figures_of
from millrace.server.kinds.registry import KINDS
from millrace.server.streams.service import SCALING

_OF_PARTS: Final[Figures] = {
    **figures_of(
        "server",
        read_only=MetricHelp(
            "read_only",
            "1 while the container is read-only, because the log failed or has lost content. Alert on 1: /health and "
            "the log messages give the reason.",
        ),
        segments=MetricHelp("segments", "Segments that exist, sealed ones included. Idle ones cost disk, not memory."),
        streams=MetricHelp("streams", "Streams that exist. Idle ones cost disk, not memory."),
        writers=MetricHelp("writers", "Writers that the server knows; idle ones expire by themselves."),
        exclusive_writers=MetricHelp("exclusive_writers", "Streams that have an exclusive writer; 65,536 at most."),
        connections=MetricHelp(
            "connections",
            "Open connections, including those without a HELLO yet. Compare with MILLRACE_FRONT_CONNECTIONS_COUNT_MAX.",
        ),
        unauthenticated_connections=MetricHelp(
            "unauthenticated_connections",
            "Connections that have not sent their first message. If there are many, something scans the port.",
        ),
        tail_bytes=MetricHelp(
            "tail_bytes",
            "Memory for events that are in the log and not yet in tier 2. If it rises to "
            "MILLRACE_CONTAINER_TAIL_SIZE_BYTES_HIGH, tier 2 is too slow, and appends are throttled.",
        ),
        unflushed_segments=MetricHelp(
            "unflushed_segments",
            "Segments with bytes that are not in tier 2 yet. It rises with the number of segments that are written to.",
        ),
        sequences_refused_total=MetricHelp(
            "sequences_refused_total",
            "Appends rejected because some of their events may be stored already. Alert on any: a writer was restarted "
            "with wrong sequences.",
        ),
        damaged_entities=MetricHelp(
            "damaged_entities",
            "Entities, such as segments and streams, that the log contradicts; requests that change them are rejected. "
            "Alert on any: `millrace verify` names them, `millrace repair` offers a way out.",
        ),
        request_bytes=MetricHelp(
            "request_bytes", "Memory that requests use. At MILLRACE_FRONT_REQUEST_BYTES_MAX, large requests wait."
        ),
        reader_bytes=MetricHelp(
            "reader_bytes",
            "Memory for readers: bytes fetched, or sent and not yet received. At MILLRACE_FRONT_READER_BYTES_MAX, slow "
            "readers are disconnected.",
        ),
        idle_bytes=MetricHelp(
            "idle_bytes",
            "Memory of idle segments, streams and writers, cached so that they need not be loaded again. Bounded by "
            "MILLRACE_CONTAINER_IDLE_BYTES_MAX.",
        ),
        attribute_bytes=MetricHelp(
            "attribute_bytes",
            "Size of the attributes of all segments. At MILLRACE_CONTAINER_ATTRIBUTES_BYTES_MAX, new ones are refused.",
        ),
    ),
    **figures_of(
        "wal",
        durable_sequence=MetricHelp("durable_sequence", "Number of the last batch of the log that is on the disk."),
        batch_count=MetricHelp("batches_total", "Batches that the log has written: one sync each."),
        written_bytes=MetricHelp("written_bytes_total", "Bytes that the log has written, headers included."),
        queued_bytes=MetricHelp(
            "queued_bytes",
            "Bytes that wait for the log. Above MILLRACE_CONTAINER_QUEUE_SIZE_BYTES_HIGH, clients are throttled: "
            "the disk is too slow.",
        ),
        fullness=MetricHelp(
            "fullness_ratio",
            "How full the log is, from 0 to 1. Near 1, tier 2 is too slow, and appends will soon be rejected.",
        ),
        write_age_s=MetricHelp(
            "write_age_seconds",
            "How long the current write has taken so far, 0 without one. Above a second the disk stalls, and health "
            "says so.",
        ),
        full_files=MetricHelp(
            "full_files", "Log files that are full and still needed, because tier 2 does not have all of their events."
        ),
        spare_files=MetricHelp("spare_files", "Empty log files that are ready. At 0 the log soon has to wait for one."),
        puts_in_flight=MetricHelp("puts_in_flight", "Batches on their way to the object store; at most 8."),
        round_trip_s=MetricHelp(
            "round_trip_seconds",
            "Shortest time of the last PUTs of the log to the object store. A lone append takes about as long.",
        ),
        objects_count=MetricHelp(
            "objects", "Objects of the log in the object store that are needed, or not deleted yet."
        ),
    ),
    **figures_of(
        "recovery",
        checkpoint_sequence=MetricHelp(
            "checkpoint_sequence", "Number of the last batch that the checkpoint of the last start contained."
        ),
        last_sequence=MetricHelp("last_sequence", "Number of the last batch that the last start found in the log."),
        torn_bytes=MetricHelp(
            "torn_bytes",
            "Size of the incomplete batch that the last start removed from the log. It was never acknowledged.",
        ),
        damages=MetricHelp(
            "damages",
            "Damaged ranges of the log that the last start found. Alert on any: `millrace verify` names them.",
        ),
        lost_bytes=MetricHelp(
            "lost_bytes", "How much of the log may be lost, until an operator accepts the loss. Alert on any."
        ),
        tail_bytes=MetricHelp(
            "tail_bytes", "Bytes that the last start read from the log, because tier 2 did not have them."
        ),
        duration_s=MetricHelp("duration_seconds", "How long the last start took from opening the folder to serving."),
    ),
    **figures_of(
        "front",
        connections_total=MetricHelp(
            "connections_total", "Connections that were accepted. If it rises fast, clients reconnect again and again."
        ),
        refused_total=MetricHelp(
            "refused_total",
            "Connections rejected because the server was shutting down, or could not renew its lease. If it keeps "
            "rising, /health gives the reason.",
        ),
        shed_total=MetricHelp(
            "shed_total", "Connections rejected because of the connection limit. Alert if it keeps rising."
        ),
        unauthenticated_connections_shed_total=MetricHelp(
            "unauthenticated_connections_shed_total",
            "Connections ended before their first message, to make room for others: something scans the port.",
        ),
        protocol_errors_total=MetricHelp(
            "protocol_errors_total",
            "Connections ended because the client broke the protocol. The log names the client.",
        ),
        foreign_protocol_total=MetricHelp(
            "foreign_protocol_total",
            "Of these, the ones that spoke HTTP or TLS to the data port: the address of a client is wrong.",
        ),
        frames_total=MetricHelp("frames_total", "Frames received, appends not included."),
        appends_total=MetricHelp("appends_total", "Appends received; each holds one event or a block of them."),
        received_bytes_total=MetricHelp(
            "received_bytes_total", "Bytes received from clients, headers of frames included."
        ),
        sent_data_bytes_total=MetricHelp(
            "sent_data_bytes_total", "Bytes of segments sent to readers, headers of frames not included."
        ),
        throttled_total=MetricHelp(
            "throttled_total",
            "Times that a client was throttled. Alert if it keeps rising: the disk, or tier 2, is too slow.",
        ),
        requests_delayed_total=MetricHelp(
            "requests_delayed_total",
            "Times that a request waited for memory. If it keeps rising, raise MILLRACE_FRONT_REQUEST_BYTES_MAX.",
        ),
        reads_delayed_total=MetricHelp(
            "reads_delayed_total",
            "Times that a read waited for memory. If it keeps rising, raise MILLRACE_FRONT_READER_BYTES_MAX.",
        ),
        readers_ended_total=MetricHelp(
            "readers_ended_total",
            "Connections of slow readers that were closed because other readers had no memory. Their clients resume.",
        ),
        requests_failed_total=MetricHelp(
            "requests_failed_total",
            "Requests answered with an error, appends included. Some are normal, for example for a name that does not "
            "exist.",
        ),
    ),
    **figures_of(
        "ownership",
        epoch=MetricHelp(
            "epoch", "Epoch of this start of the container: each start and each takeover has a higher one."
        ),
        is_fenced=MetricHelp(
            "fenced",
            "1 if another server has taken over this history. This server then exits; its message names the other.",
        ),
        is_stalled=MetricHelp(
            "stalled",
            "1 while nothing is acknowledged, because this process stalled for longer than its lease. It claims the "
            "container again by itself.",
        ),
        renewals_count=MetricHelp("renewals_total", "Renewals of the lease in the object store that succeeded."),
        failed_renewals_count=MetricHelp(
            "failed_renewals_total",
            "Renewals of the lease that failed or had no answer in time. If it keeps rising, the store cannot be "
            "reached or rejects writes.",
        ),
        lease_age_s=MetricHelp(
            "lease_age_seconds",
            "Age of the lease in the object store. Alert if it is above MILLRACE_OBJECTS_LEASE_S: another server that "
            "reaches the store may take over.",
        ),
    ),
    **figures_of(
        "history",
        is_standing_by=MetricHelp(
            "standing_by",
            "1 while this server is a standby. It is not healthy then, because it serves no clients. No reason for an "
            "alert.",
        ),
    ),
    **figures_of(
        "feed",
        open=MetricHelp("open", "Feeds that are open. At MILLRACE_FEED_COUNT_MAX, further ones are refused."),
        opened_total=MetricHelp(
            "opened_total",
            "Feeds that were opened. If it rises fast, clients reconnect again and again; they may be too slow.",
        ),
        refused_total=MetricHelp(
            "refused_total",
            "Requests for a feed that got an error instead: too many are open, or the stream cannot be read.",
        ),
        events_total=MetricHelp("events_total", "Events sent to feeds. An event counts once for each feed."),
    ),
    **figures_of(
        "cache",
        budget_bytes=MetricHelp("budget_bytes", "Largest size of the cache for reads of old events: its setting."),
        size_bytes=MetricHelp("size_bytes", "Size of the cache for reads of old events."),
        protected_bytes=MetricHelp(
            "protected_bytes", "The part of the cache that was read more than once; it is evicted last."
        ),
        extent_count=MetricHelp("extents", "Ranges of segments in the cache."),
        fetch_count=MetricHelp("fetches_in_progress", "Fetches from tier 2 that run or wait for their turn."),
        unread_bytes=MetricHelp("unread_bytes", "Bytes fetched ahead, or being fetched, that were not read yet."),
        hits_total=MetricHelp("hits_total", "Reads answered from the cache alone."),
        misses_total=MetricHelp("misses_total", "Reads that had to wait for tier 2."),
        joins_total=MetricHelp("joins_total", "Reads that waited for a fetch that another read had started."),
        fetches_total=MetricHelp("fetches_total", "Fetches from tier 2, including read-ahead."),
        fetches_ahead_total=MetricHelp("fetches_ahead_total", "Fetches made ahead for a reader that reads in order."),
        fetch_failures_total=MetricHelp(
            "fetch_failures_total",
            "Fetches from tier 2 that failed: it cannot be read, or a chunk is damaged. Alert on it.",
        ),
        fetched_bytes_total=MetricHelp(
            "fetched_bytes_total", "Bytes fetched from tier 2, including those that were never read."
        ),
        evicted_bytes_total=MetricHelp("evicted_bytes_total", "Bytes evicted from the cache to make space."),
        evicted_unread_bytes_total=MetricHelp(
            "evicted_unread_bytes_total",
            "Bytes fetched ahead and evicted before they were read: raise MILLRACE_CACHE_BUDGET_BYTES.",
        ),
    ),
}
"""By part and field of `Server.statistics`; texts and what is None are no metrics."""


def with_kinds(kinds: Kinds) -> Figures:
    """Return the metrics of all parts, with those that some kinds declare."""
    return {**_OF_PARTS, **SCALING.figures, **{key: figure for kind in kinds for key, figure in kind.figures.items()}}


STATISTICS: Final = with_kinds(KINDS)
