"""Writers of events: they send each event to its segment, with retries, so that it is stored exactly once."""
