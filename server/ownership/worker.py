"""A process that serves containers, as others see it."""

import os
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from millrace.server.folder import LOCK_NAME
from millrace.server.host.clock import Clock

from .fields import utc_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A process that serves the containers of one data folder.

    Attributes:
        worker_id: of this process only; the next process in the folder has another id.
        host: name of its machine.
        folder: path of its data folder on that machine, without links.
        place: equal for two processes only if they have locked the same data folder, one after the other.
        pid: its process id on that machine.
        started: time in UTC, ISO 8601.
    """

    worker_id: uuid.UUID
    host: str
    folder: str
    place: str
    pid: int
    started: str

    @classmethod
    def in_folder(cls, folder: Path, *, clock: Clock) -> Self:
        """Return this process, which holds the lock of a data folder. Blocks."""
        host = socket.gethostname()
        # Bytes of a path that are not UTF-8 cannot be printed.
        real = os.fsencode(os.path.realpath(folder)).decode(errors="backslashreplace")
        try:
            lock = os.stat(folder / LOCK_NAME).st_ino
        except OSError:  # a folder that is not on a disk
            lock = 0
        return cls(
            worker_id=uuid.uuid4(),
            host=host,
            folder=real,
            place=f"{host}:{real}#{lock}",
            pid=os.getpid(),
            started=utc_text(clock.unix_us()),
        )

    def __str__(self) -> str:
        """Return host and folder, for people."""
        return f"{self.host} ({self.folder})"
