"""The client for threads: see `millrace.client.blocking`."""

from millrace.client.blocking import Client, Reader, Segments, Writer, connect

__all__ = ["Client", "Reader", "Segments", "Writer", "connect"]
