"""Writers of events: they send each event to its segment, again if need be, so that it is stored once."""
