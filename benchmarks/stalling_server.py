"""A server on a disk that stands still now and then: `python -m benchmarks.stalling_server DATA_FOLDER --console H:P`.

At most every `PERIOD_S` a sync of the log takes `STALL_S` longer. Prints the same line as `python -m millrace.server`.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Final

import uvloop

from millrace.server.app import Server
from millrace.server.host.files import OsFile, OsFileSystem
from millrace.server.options import ServerOptions
from millrace.server.process import start_as_process
from millrace.server.settings import load_settings

STALL_S: Final = 0.005
PERIOD_S: Final = 0.25


class StallingFile(OsFile):
    """A file of the log."""

    __slots__ = ("_stalls_at_s",)

    def __init__(self, descriptor: int, path: Path) -> None:
        super().__init__(descriptor, path)
        self._stalls_at_s = 0.0

    def datasync(self) -> None:
        """Sync, and stand still if it is time for that."""
        if (now_s := time.monotonic()) >= self._stalls_at_s:
            self._stalls_at_s = now_s + PERIOD_S
            time.sleep(STALL_S)
        super().datasync()


class StallingFileSystem(OsFileSystem):
    """Files of logs stall, others do not."""

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> OsFile:
        """Open a file."""
        file = super().open(path, create=create, exclusive=exclusive, read_only=read_only)
        if path.parent.name != "wal":
            return file
        return StallingFile(file._descriptor, path)  # noqa: SLF001  # takes it over


async def _serve(options: ServerOptions) -> None:
    server = Server(options, files=StallingFileSystem())
    if not await start_as_process(server):
        return
    try:
        print(json.dumps({"address": server.address, "console": server.console_address}), flush=True)
        await server.wait_for_end()
    finally:
        await server.stop()


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_folder", type=Path)
    parser.add_argument("--console", required=True)
    arguments = parser.parse_args()
    given = {"data_dir": arguments.data_folder, "listen": "127.0.0.1:0", "console": arguments.console}
    uvloop.run(_serve(load_settings(given).options))


if __name__ == "__main__":
    main()
