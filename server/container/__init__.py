"""The unit that owns segments: their state, their tail in memory, and their way to tier 2."""
