"""Requests about segments, streams and bookmarks."""
