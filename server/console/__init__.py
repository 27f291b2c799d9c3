"""The HTTP port of the server: the web page and its JSON, metrics, health, and feeds of events."""
