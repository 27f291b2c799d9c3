"""Counters over all connections since the start."""

from dataclasses import dataclass


@dataclass(slots=True)
class FrontCounters:
    """Counters shared by all connections."""

    connections_total: int = 0
    refused_total: int = 0
    shed_total: int = 0
    unauthenticated_connections_shed_total: int = 0
    protocol_errors_total: int = 0
    foreign_protocol_total: int = 0
    frames_total: int = 0
    appends_total: int = 0
    received_bytes_total: int = 0
    sent_data_bytes_total: int = 0
    throttled_total: int = 0
    # What was full when a client was last throttled; empty if none ever was.
    throttled_last: str = ""
    requests_delayed_total: int = 0
    reads_delayed_total: int = 0
    readers_ended_total: int = 0
    requests_failed_total: int = 0
