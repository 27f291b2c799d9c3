"""Bookmark, slice, replay: sensors are watched live, and what was cut out of their stream is computed again later."""
