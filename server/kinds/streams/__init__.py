"""Streams: named sets of segments, each with a range of the key space, and their cuts."""
