"""Background work of a container: flush to tier 2, checkpoint, recycle the log, delete garbage."""
