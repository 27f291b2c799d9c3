"""Writers of events: per-segment senders with exactly-once retransmission."""
