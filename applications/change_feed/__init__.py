"""Derived state that is observed from a browser or with curl, by server-sent events."""
