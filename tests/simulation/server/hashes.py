"""Hashes that do not depend on addresses: sets of objects are in the same order in each run of a seed."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest import mock

from millrace.server.container.state.segment import Segment
from millrace.server.front.connection import Connection
from millrace.server.front.dispatcher import Dispatcher
from millrace.server.front.reader_memory import ReaderAccount
from millrace.server.front.reads import WaitingReader
from millrace.server.front.reply_writer import ReplyWriter
from millrace.server.front.request_memory import RequestAccount

IN_SETS: Final = (Segment, Connection, Dispatcher, ReaderAccount, WaitingReader, ReplyWriter, RequestAccount)
"""Classes of the server whose objects are in sets."""


@contextmanager
def repeatable_hashes() -> Iterator[None]:
    """Hash objects by the order in which they were first hashed; they live until the end, so that ids stay theirs."""
    serials: dict[int, int] = {}
    hashed: list[object] = []

    def hash_of(item: object) -> int:
        serial = serials.get(id(item))
        if serial is None:
            serial = serials[id(item)] = len(hashed)
            hashed.append(item)
        return serial

    with ExitStack() as patches:
        for each in IN_SETS:
            patches.enter_context(mock.patch.object(each, "__hash__", hash_of))
        yield
