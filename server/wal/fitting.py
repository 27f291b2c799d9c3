"""Log file sizes that fit the volume.

A log needs two files: one is recycled while the other is written. On a volume on which two files of the configured size
would leave too little for tier 2, files have the smallest size that fits the largest run and the headroom.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Final

from millrace.model.quantities import exact_size
from millrace.server.errors import NoSpaceError
from millrace.server.host.room import DiskRoom
from millrace.wire.limits import KIB, MIB
from millrace.wire.schema.log import LOG_FILE_HEADER_BLOCK_BYTES

from .options import FILES_COUNT_MIN, HEADROOM_BYTES_MIN, WalOptions, smallest_file_bytes

logger = logging.getLogger(__name__)

TIER2_BYTES_MIN: Final = 4 * MIB
"""Space for chunks; a volume with less is not used."""


def needed_bytes(options: WalOptions, *, reserve_bytes: int, has_tier2: bool) -> int:
    """Return the space that a server needs on the volume of its log: two log files, reserve, some chunks."""
    return FILES_COUNT_MIN * options.file_size_bytes_min + reserve_bytes + (TIER2_BYTES_MIN if has_tier2 else 0)


def fitted(options: WalOptions, room: DiskRoom, directory: Path, *, log_bytes: int) -> WalOptions:
    """Return options whose log files fit the volume: the given ones, or with smaller files.

    Args:
        options: as configured.
        room: of the volume.
        directory: of the log; its volume is measured.
        log_bytes: of the existing log files, 0 for a new log.

    Raises:
        NoSpaceError: a new log would not fit; the error names the settings. An existing log is always opened, so that
            its content can be read, and truncated.
    """
    reserve_bytes = room.reserve_bytes
    bytes_there = room.left_bytes(directory) + log_bytes
    others_bytes = max(TIER2_BYTES_MIN, options.file_size_bytes) if room.has_tier2 else 0
    if bytes_there >= reserve_bytes + FILES_COUNT_MIN * options.file_size_bytes + others_bytes:
        return options
    needed = needed_bytes(options, reserve_bytes=reserve_bytes, has_tier2=room.has_tier2)
    if bytes_there < needed and not log_bytes:
        raise NoSpaceError(
            f"the volume has space for {_mib(bytes_there)}, but {_mib(needed)} are needed: two log files of "
            f"{_mib(options.file_size_bytes_min)}, which hold wal.run_size_bytes_max, "
            f"{exact_size(options.run_size_bytes_max)}, and wal.headroom_bytes, {exact_size(options.headroom_bytes)}; "
            f"and {_mib(needed - FILES_COUNT_MIN * options.file_size_bytes_min)} for checkpoints and chunks. "
            f"Use a larger volume{_smaller(bytes_there - needed, options)}",
            subject=str(directory),
        )
    if options.file_size_bytes_min < options.file_size_bytes:
        logger.warning(
            "small volume, log file size reduced file_size_bytes=%d configured_bytes=%d room_bytes=%d",
            options.file_size_bytes_min, options.file_size_bytes, bytes_there,
        )  # fmt: skip
    return replace(options, file_size_bytes=options.file_size_bytes_min)


def _smaller(surplus_bytes: int, options: WalOptions) -> str:
    """Return settings that fit, as a continuation of the advice; empty if none do."""
    file_size_bytes = options.file_size_bytes_min + surplus_bytes // FILES_COUNT_MIN
    unit = MIB if file_size_bytes > 4 * MIB else KIB
    half = (file_size_bytes - 2 * LOG_FILE_HEADER_BLOCK_BYTES) // 2 // unit * unit
    run, headroom = min(options.run_size_bytes_max, half), min(options.headroom_bytes, half)
    fits = half >= HEADROOM_BYTES_MIN and smallest_file_bytes(run, headroom) <= file_size_bytes
    if not fits:
        return ""
    return f", or set wal.run_size_bytes_max={exact_size(run)} and wal.headroom_bytes={exact_size(headroom)}"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.1f} MiB"
