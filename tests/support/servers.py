"""Real servers for tests: in this process, on small files, so that everything happens within moments."""

from pathlib import Path
from typing import Any

from millrace.model.address import Address
from millrace.server.container.options import ContainerOptions
from millrace.server.options import ServerOptions
from millrace.server.wal import WalOptions
from millrace.wire.limits import KIB

SMALL_WAL = WalOptions(
    file_size_bytes=128 * KIB,
    files_max=8,
    batch_size_bytes_max=64 * KIB,
    run_size_bytes_max=64 * KIB,
    headroom_bytes=8 * KIB,
    retry_interval_s=0.05,
    # A disk that a test stalls must not hold up the loop of the test.
    lone_size_bytes_max=0,
)
"""Logs that roll over after a hundred appends of a kibibyte."""

QUIET = ContainerOptions(flush_age_s=3600.0, checkpoint_interval_s=3600.0, idle_bytes_max=8 * KIB)
"""Nothing is flushed unless the log or the memory fills. What is not in use is on disk."""

BUSY = ContainerOptions(
    flush_size_bytes=16 * KIB,
    flush_age_s=0.05,
    chunk_size_bytes_max=48 * KIB,
    chunk_size_bytes_small=4 * KIB,
    checkpoint_interval_s=0.05,
    garbage_interval_s=0.1,
    idle_bytes_max=4 * KIB,
    verified_at_once_count_max=10,
)
"""Everything is flushed and checkpointed at once, and nothing idle is held in memory."""

ENVIRONMENT_OF_BUSY = {
    "MILLRACE_WAL_FILE_SIZE_BYTES": str(128 * KIB),
    "MILLRACE_WAL_FILES_MAX": "8",
    "MILLRACE_WAL_BATCH_SIZE_BYTES_MAX": str(64 * KIB),
    "MILLRACE_WAL_RUN_SIZE_BYTES_MAX": str(64 * KIB),
    "MILLRACE_WAL_HEADROOM_BYTES": str(8 * KIB),
    "MILLRACE_CONTAINER_FLUSH_SIZE_BYTES": str(16 * KIB),
    "MILLRACE_CONTAINER_FLUSH_AGE_S": "0.05",
    "MILLRACE_CONTAINER_CHUNK_SIZE_BYTES_MAX": str(48 * KIB),
    "MILLRACE_CONTAINER_CHUNK_SIZE_BYTES_SMALL": str(4 * KIB),
    "MILLRACE_CONTAINER_CHECKPOINT_INTERVAL_S": "0.05",
    "MILLRACE_CONTAINER_GARBAGE_INTERVAL_S": "0.1",
    "MILLRACE_CONTAINER_ORPHAN_GRACE_S": "0.2",
    "MILLRACE_CONTAINER_IDLE_BYTES_MAX": str(4 * KIB),
    "MILLRACE_CONTAINER_VERIFIED_AT_ONCE_COUNT_MAX": "10",
}
"""The same for a server in a process of its own."""


def server_options(folder: Path, **parts: Any) -> ServerOptions:
    """Return options for a server on any free port, without a console, with a small quiet log unless said otherwise."""
    parts.setdefault("wal", SMALL_WAL)
    parts.setdefault("container", QUIET)
    parts.setdefault("console", None)
    return ServerOptions(data_folder=folder, listen=Address("127.0.0.1", 0), **parts)
