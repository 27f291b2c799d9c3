"""Measure Millrace, the floors under it and the rivals beside it, in one run on one machine."""
