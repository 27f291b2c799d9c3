"""The client: connections, segments, writers, readers and cuts, for asyncio and for threads."""
