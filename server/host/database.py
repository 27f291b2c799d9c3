"""Opens SQLite files so that commits are durable and other programs can read them during a write."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Final, Literal

DatabaseMode = Literal["ro", "rw", "rwc"]
"""Read-only, read-write, and read-write that creates a missing file. The names are SQLite's."""

BUSY_TIMEOUT_S: Final = 5.0
"""How long to wait for a commit, or for another program that is reading the file."""
CACHE_SIZE_KIB: Final = 8192


def connect_database(
    path: Path, *, mode: DatabaseMode = "rw", busy_timeout_s: float = BUSY_TIMEOUT_S
) -> sqlite3.Connection:
    """Open a database. The caller begins and ends transactions explicitly, in any thread.

    The journal is SQLite's rollback journal, in mode DELETE with `synchronous=EXTRA`:

    - At rest there is only one file, so that copying, restoring and setting it aside are operations on one name.
    - A write-ahead log of SQLite ends, by design, where a checksum fails: a flipped bit in it would silently restore
      older content.
    - With the usual `synchronous=FULL` the removal of the journal is not synced. After a power loss the journal may
      reappear and roll back a transaction that was reported as stored. EXTRA syncs the folder.
    """
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=busy_timeout_s,
        isolation_level=None,
        check_same_thread=False,
        # A cached statement keeps the values that it wrote last, which may be a hundred megabytes of attributes.
        cached_statements=0,
    )
    with contextlib.ExitStack() as undo:
        undo.callback(connection.close)
        connection.execute("PRAGMA trusted_schema=OFF")
        connection.execute(f"PRAGMA cache_size=-{CACHE_SIZE_KIB}")
        connection.execute("PRAGMA cell_size_check=ON")
        if mode == "ro":
            connection.execute("PRAGMA query_only=ON")
        else:
            connection.execute("PRAGMA journal_mode=DELETE")
            connection.execute("PRAGMA synchronous=EXTRA")
            connection.execute("PRAGMA fullfsync=ON")  # macOS: sync the cache of the drive too
            # Changed pages stay in memory until the commit: writing them earlier would lock readers out.
            connection.execute("PRAGMA cache_spill=OFF")
        undo.pop_all()
    return connection
