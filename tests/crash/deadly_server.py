"""A real server in a process of its own that kills itself at a point which a test names, in DATA_FOLDER.point.

    python -m tests.crash.deadly_server DATA_FOLDER [further arguments of millrace.server]

The file says what happens and how far it has come then, see `arm`. All of it is seen at the file system of the server:

    TransactionBegun ...  a record, or `appended` for events that contain MARK, in a batch of the log
        queued            it is about to be written
        torn              half of the batch is written
        written           all of it is, and none of it is synced
        synced            it is synced, and nobody has been told
        applied           the event loop has been told, and clients may have been answered just before
    checkpoint          the state is stored: before, or after it
    publish, delete     a chunk of one of some segments is published, or deleted: before, or after it
"""

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from millrace.server import __main__ as program
from millrace.server.app import Server
from millrace.server.host.database import DatabaseMode
from millrace.server.host.files import Buffer, OsFile, OsFileSystem
from millrace.server.options import ServerOptions
from millrace.server.tier2 import parse_chunk_name
from millrace.server.wal.batch import Batch, decode_batch, decode_runs
from millrace.wire.append_run import KIND_CONTROL
from millrace.wire.framing import decode

MARK: Final = b"mark"
APPENDED: Final = "appended"
CHECKPOINT: Final = "checkpoint"
PUBLISH: Final = "publish"
DELETE: Final = "delete"


class Point(NamedTuple):
    """Where a server dies."""

    what: str
    when: str
    # For chunks: those of these segments.
    ids: range = range(1 << 63)


def arm(folder: Path, point: Point) -> None:
    """Let the server of a folder kill itself when it next comes to a point."""
    path = _path_of(folder)
    written = path.with_name(path.name + ".written")
    written.write_text(f"{point.what},{point.when},{point.ids.start},{point.ids.stop}")
    written.rename(path)


def disarm(folder: Path) -> None:
    """Let the next server of a folder live."""
    _path_of(folder).unlink(missing_ok=True)


def _path_of(folder: Path) -> Path:
    return folder.with_name(folder.name + ".point")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DeadlyFile(OsFile):
    """A file of the log."""

    disk: "DeadlyFileSystem"
    # How far the batch that was written last may come: the server dies then.
    last: str = ""
    sequence: int = 0

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        self.last = ""
        point = self.disk.point()
        data = b"".join(buffers) if point else b""
        batch = decode_batch(memoryview(data), 0, None) if point else None
        if point is None or batch is None or point.what not in _content(data, batch):
            super().pwritev(buffers, offset)
            return
        self.last, self.sequence = point.when, batch.sequence
        if self.last == "queued":
            _die()
        if self.last == "torn":
            super().pwritev([data[: batch.size // 2]], offset)
            _die()
        super().pwritev(buffers, offset)
        if self.last == "written":
            _die()

    def datasync(self) -> None:
        super().datasync()
        if self.last == "synced":
            _die()
        if self.last == "applied":
            self.disk.die_when_applied(self.sequence)


def _content(data: bytes, batch: Batch) -> set[str]:
    """Return the names of the records in a batch."""
    found = set()
    for run, _ in decode_runs(memoryview(data), batch):
        if run.kind == KIND_CONTROL:
            found.add(type(decode(run.frames)[1]).__name__)
        elif MARK in bytes(run.frames):
            found.add(APPENDED)
    return found


class DeadlyConnection:
    """A connection to a database; `commit` is called with "before" and "after" whenever it commits."""

    def __init__(self, connection: sqlite3.Connection, commit: Callable[[str], None]) -> None:
        self._connection = connection
        self._commit = commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql != "COMMIT":
            return self._connection.execute(sql, *parameters)
        self._commit("before")
        cursor = self._connection.execute(sql)
        self._commit("after")
        return cursor

    def backup(self, target: "DeadlyConnection", **options: Any) -> None:
        self._connection.backup(target._connection, **options)


class DeadlyFileSystem(OsFileSystem):
    """The file system of the machine, at which a server is seen to come to its point."""

    def __init__(self, folder: Path) -> None:
        self._path = _path_of(folder)
        self.server: Server | None = None
        self.loop = asyncio.get_running_loop()

    def point(self) -> Point | None:
        """Return where to die."""
        try:
            what, when, start, stop = self._path.read_text().split(",")
        except FileNotFoundError:
            return None
        return Point(what, when, range(int(start), int(stop)))

    def die_when_applied(self, sequence: int) -> None:
        """Die as soon as a batch is applied: its answers leave shortly before that, or after."""
        self.loop.call_soon_threadsafe(self._die_if_applied, sequence)

    def _die_if_applied(self, sequence: int) -> None:
        # No seam is between the two: it looks in each turn of the loop until it is so.
        assert self.server is not None
        if self.server.opened.container.log.durable_sequence >= sequence:
            _die()
        self.loop.call_soon(self._die_if_applied, sequence)

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> OsFile:
        opened = super().open(path, create=create, exclusive=exclusive, read_only=read_only)
        if path.parent.name != "wal":
            return opened
        file = DeadlyFile(opened._descriptor, path)
        file.disk = self
        return file

    def database(self, path: Path, *, mode: DatabaseMode = "rw") -> sqlite3.Connection:
        connection = DeadlyConnection(super().database(path, mode=mode), partial(self._die_if, CHECKPOINT))
        return cast("sqlite3.Connection", connection)

    def rename(self, source: Path, target: Path) -> None:
        self._die_of_chunk(PUBLISH, "before", target)
        super().rename(source, target)
        self._die_of_chunk(PUBLISH, "after", target)

    def remove(self, path: Path) -> None:
        self._die_of_chunk(DELETE, "before", path)
        super().remove(path)
        self._die_of_chunk(DELETE, "after", path)

    def _die_of_chunk(self, what: str, when: str, path: Path) -> None:
        chunk = parse_chunk_name("/".join(path.parts[-3:]))
        if chunk is not None:
            self._die_if(what, when, segment_id=chunk.segment_id)

    def _die_if(self, what: str, when: str, *, segment_id: int = 0) -> None:
        point = self.point()
        if point is not None and (point.what, point.when) == (what, when) and segment_id in point.ids:
            _die()


def deadly_server(options: ServerOptions) -> Server:
    """Return a server that dies when it is told to."""
    files = DeadlyFileSystem(options.data_folder)
    files.server = Server(options, files=files)
    return files.server


if __name__ == "__main__":
    # The program has no option for it.
    vars(program)["Server"] = deadly_server
    sys.exit(program.main())
