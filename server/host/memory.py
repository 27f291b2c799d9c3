"""How the process keeps the memory it has freed, and when it gives it back.

By default the C library gives large blocks back to the system when they are freed, and asks for fresh ones for the next
buffers. The first touch of each fresh page is a fault: cheap on bare metal, but on a virtual machine it was measured at
0.4 to 1.8 GB/s, far below what the log writes. A server whose buffers come and go all day is better off keeping them:
its memory is bounded anyway, by the bounds of its buffers.

What it has not used for a while it gives back, though: memory that was needed once, by peers that have left, is not
kept for good. What is in use changes with each flush and each reader; so it is the most that was in use lately that
counts, and giving back is rare: it takes time, in which threads that want memory wait.
"""

import asyncio
import ctypes
import gc
import logging
import os
import sys
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

from .clock import Clock

logger = logging.getLogger(__name__)

# The C library. Once: each `CDLL` is garbage in a cycle when it is not used any more.
_LIBRARY: Final = ctypes.CDLL(None)

# Numbers of <malloc.h> of the GNU C library.
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

_KEPT_BYTES: Final = 1 << 30
_GROWTH_BYTES: Final = 16 << 20
_LARGEST_BLOCK_BYTES: Final = 32 << 20

OBSERVED_EVERY_S: Final = 1.0
WINDOW_COUNT: Final = 20
"""What was not in use in any of so many observations is given back."""
PAUSE_COUNT_MAX: Final = 600
"""After so many observations what could not be given back is asked for again, however little it brought before."""
SLACK_BYTES: Final = 32 << 20
"""Less than that is not worth it."""


def keep_freed_memory() -> bool:
    """Tell the allocator to keep up to 1 GiB of freed memory for reuse, in any thread; return whether it understood.

    For the process of a server only, once, before it starts threads: each would get a heap of its own, and what one
    thread frees would be of no use to the others.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = _LIBRARY.mallopt
    except AttributeError:  # musl has no mallopt, and other habits
        return False
    done = (
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK_BYTES)
        and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        and mallopt(_M_TOP_PAD, _GROWTH_BYTES)
        and mallopt(_M_ARENA_MAX, 1)
    )
    logger.debug("freed memory kept=%s", bool(done))
    return bool(done)


class MemoryUse(NamedTuple):
    """The memory of the process: what of its heap is in use, and what of all of it is in the machine's memory."""

    used_bytes: int
    resident_bytes: int


class FreedMemory:
    """Decides when memory is given back. Pure; `observe` is called about every second.

    Resident is what the heap uses, what was freed and is kept, and the *rest*: code, stacks, Python's own pools of
    small objects. The least difference of resident and used memory is taken for the rest. What is *stuck* when memory
    was given back, in pages that are used in part or in pools that have grown, is not asked for again at once. Pages
    become free later, though: it is after a window, or where that brought little, after twice as long.
    """

    def __init__(self, *, window_count: int = WINDOW_COUNT, slack_bytes: int = SLACK_BYTES) -> None:
        self._window_count = window_count
        self._slack_bytes = slack_bytes
        self._used: deque[int] = deque(maxlen=window_count)
        self._rest_bytes: int | None = None
        # What the last giving back left, and after how many more observations that may have come free.
        self._stuck_bytes = 0
        self._stuck_count = 0
        self._pause_count = window_count
        # What was in use when it was known that there is no garbage in it.
        self._clean_bytes: int | None = None

    def has_garbage(self) -> bool:
        """Return whether there may be much garbage: more is in use than it was, and the process is quiet.

        The collector of Python runs by the number of objects, however large they are, and rarely in a server. What a
        connection leaves in cycles, with buffers of megabytes, would stay for as long as nothing else happens.
        """
        least, most = min(self._used), max(self._used)
        if self._clean_bytes is None:
            self._clean_bytes = least
        is_quiet = len(self._used) == self._used.maxlen and most - least <= self._slack_bytes // 4
        return is_quiet and least > self._clean_bytes + self._slack_bytes // 4

    def collected(self, use: MemoryUse) -> None:
        """Take what is so after garbage was collected."""
        self._clean_bytes = use.used_bytes

    def observe(self, use: MemoryUse) -> bool:
        """Take an observation; return whether memory should be given back now.

        Also when there are few of them yet: an attack on a server that has just started is bounded, too.
        """
        rest = use.resident_bytes - use.used_bytes
        self._rest_bytes = rest if self._rest_bytes is None else min(self._rest_bytes, rest)
        self._used.append(use.used_bytes)
        self._stuck_count -= 1
        if self._stuck_count <= 0:
            self._stuck_bytes = 0
        return use.resident_bytes - self._rest_bytes - self._stuck_bytes - max(self._used) > self._slack_bytes

    def given_back(self, before: MemoryUse, after: MemoryUse) -> None:
        """Take what was so before and after memory was given back."""
        is_little = before.resident_bytes - after.resident_bytes < self._slack_bytes // 2
        self._pause_count = min(2 * self._pause_count, PAUSE_COUNT_MAX) if is_little else self._window_count
        self._stuck_count = self._pause_count
        self._stuck_bytes = max(0, after.resident_bytes - after.used_bytes - (self._rest_bytes or 0))


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of <malloc.h>."""

    _fields_ = [  # ctypes wants it so
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def memory_use() -> MemoryUse | None:
    """Return the memory of this process; None if this system does not tell."""
    try:
        mallinfo2 = _LIBRARY.mallinfo2
        pages = Path("/proc/self/statm").read_bytes().split()[1]
    except (OSError, AttributeError):  # not Linux, or a C library that is older than 2021, or none of GNU
        return None
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return MemoryUse(info.uordblks + info.hblkhd, int(pages) * os.sysconf("SC_PAGE_SIZE"))


async def give_back_memory(clock: Clock) -> None:
    """Give freed memory back to the system when it was not in use for a while, until cancelled.

    For the process of a server only. Returns where the system cannot.
    """
    freed = FreedMemory()
    while (use := memory_use()) is not None:
        is_kept = freed.observe(use)
        if freed.has_garbage():
            gc.collect()
            freed.collected(memory_use() or use)
        elif is_kept:
            await asyncio.to_thread(_LIBRARY.malloc_trim, 0)
            after = memory_use() or use
            freed.given_back(use, after)
            logger.info(
                "freed memory returned to the system resident_bytes_before=%d resident_bytes=%d",
                use.resident_bytes,
                after.resident_bytes,
            )
        await clock.sleep(OBSERVED_EVERY_S)
