"""The client for threads: see `millrace.client.blocking`."""

from millrace.client.blocking import (
    Bookmarks,
    Branch,
    Client,
    Cursors,
    Reader,
    Segments,
    StreamsReader,
    Transaction,
    Writer,
    connect,
)
from millrace.client.byte_files import ByteReader, ByteWriter

__all__ = [
    "Bookmarks",
    "Branch",
    "ByteReader",
    "ByteWriter",
    "Client",
    "Cursors",
    "Reader",
    "Segments",
    "StreamsReader",
    "Transaction",
    "Writer",
    "connect",
]


def __dir__() -> list[str]:
    return __all__
