"""Which segments, streams and writers are in memory, and how the others are loaded."""
