"""A container owns segments: their state, their newest bytes in memory, and the move of bytes to tier 2."""
