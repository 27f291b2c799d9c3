"""Opening SQLite files in the one way that is durable, and readable while they are written."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Final, Literal

DatabaseMode = Literal["ro", "rw", "rwc"]
"""Read only; read and write; and make the file if there is none. As SQLite names them."""

BUSY_TIMEOUT_S: Final = 5.0
"""How long to wait for a commit, or for another program that reads the file."""
CACHE_SIZE_KIB: Final = 8192


def connect_database(
    path: Path, *, mode: DatabaseMode = "rw", busy_timeout_s: float = BUSY_TIMEOUT_S
) -> sqlite3.Connection:
    """Open a database; transactions are begun and ended by hand, in any thread.

    The journal is SQLite's rollback journal, in mode DELETE with `synchronous=EXTRA`:

    - At rest there is just the one file, so that copying, restoring and setting it aside are operations on one name.
    - A write-ahead log of SQLite ends, by design, where a checksum fails: a flipped bit in it would silently restore
      older content.
    - With the usual `synchronous=FULL` the removal of the journal is not synced, and after a loss of power the journal
      may be there again and take back a transaction that was reported as stored. EXTRA syncs the folder.
    """
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=busy_timeout_s,
        isolation_level=None,
        check_same_thread=False,
        # A statement that is kept keeps the values that it wrote last: a hundred megabytes of attributes, it may be.
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
            # Changed pages stay in memory until the commit: written earlier, they would lock readers out.
            connection.execute("PRAGMA cache_spill=OFF")
        undo.pop_all()
    return connection
