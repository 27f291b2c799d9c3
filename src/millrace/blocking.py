"""The client for threads: see `millrace.client.blocking`."""

from millrace.client.blocking import (
    Bookmarks,
    ByteReader,
    ByteWriter,
    Client,
    Cursors,
    Reader,
    Segments,
    Writer,
    connect,
)

__all__ = ["Bookmarks", "ByteReader", "ByteWriter", "Client", "Cursors", "Reader", "Segments", "Writer", "connect"]
