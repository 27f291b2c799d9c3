"""The client for threads: see `millrace.client.blocking`."""

from millrace.client.blocking import (
    Bookmarks,
    ByteReader,
    ByteWriter,
    Client,
    Cursors,
    Reader,
    Segments,
    StreamsReader,
    Writer,
    connect,
)

__all__ = ["Bookmarks", "ByteReader", "ByteWriter", "Client", "Cursors", "Reader", "Segments", "StreamsReader", "Writer", "connect"]
