"""A file system in memory that tells which syncs of the log held up the event loop."""

import threading

from millrace.server.wal import NEWEST_NAME
from tests.support.clock import ManualClock
from tests.support.files import MemoryFile, MemoryFileSystem


class WatchedFiles(MemoryFileSystem):
    """Knows which syncs of log files the loop made, and how long each takes by the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.sync_s = 0.0
        # Of each sync of a log file, since the last call of `taken`.
        self._by_loop: list[bool] = []

    def _datasync(self, file: MemoryFile) -> None:
        super()._datasync(file)
        # Not those of the thread that makes files ready, nor of the file that names the newest.
        thread = threading.current_thread()
        if file.path.name != NEWEST_NAME and thread.name in ("MainThread", "millrace-wal"):
            self._by_loop.append(thread.name == "MainThread")
            self.clock.move(self.sync_s)

    def taken(self) -> list[bool]:
        taken, self._by_loop = self._by_loop, []
        return taken
