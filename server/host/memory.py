"""Policy for freed memory: how the process keeps it, and when it returns it to the system.

By default the C library returns large blocks to the system when they are freed, and requests fresh ones for the next
buffers. The first touch of each fresh page is a fault: cheap on bare metal, but on a virtual machine it was measured at
0.4 to 1.8 GB/s, far below what the log writes. A server whose buffers come and go all day is better off keeping them:
its memory is bounded anyway, by the bounds of its buffers.

Memory that was unused for a while is returned, so that a peak caused by peers that have left is not kept for good.
Usage changes with each flush and each reader, so the recent maximum of usage counts. Memory is returned rarely, because
that blocks threads that allocate.
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

# The C library, loaded once: each unused `CDLL` is cyclic garbage.
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
"""Memory that was unused in any of this many observations is returned."""
PAUSE_COUNT_MAX: Final = 600
"""After this many observations memory that could not be returned is tried again, however little the last try freed."""
SLACK_BYTES: Final = 32 << 20
"""Less than that is not worth it."""


def keep_freed_memory() -> bool:
    """Tell the allocator to keep up to 1 GiB of freed memory for reuse, in any thread; return whether it accepted that.

    For the process of a server only, once, before it starts threads: otherwise each thread would get its own heap, and
    memory freed by one thread could not be reused by others.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = _LIBRARY.mallopt
    except AttributeError:  # musl has no mallopt, and another allocator
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
    """Memory of the process: heap in use, and resident memory in total."""

    used_bytes: int
    resident_bytes: int


class FreedMemory:
    """Decides when to return memory. Pure; `observe` is called about every second.

    Resident memory is the used heap, freed memory that is kept, and the *rest*: code, stacks, Python's pools of small
    objects. The least difference between resident and used memory is the estimate of the rest. *Stuck* memory, in
    partly used pages or in pools that have grown, could not be returned at the last attempt and is not tried again at
    once. As pages become free later, it is tried again after a window, or, if that freed little, after twice as long.
    """

    def __init__(self, *, window_count: int = WINDOW_COUNT, slack_bytes: int = SLACK_BYTES) -> None:
        self._window_count = window_count
        self._slack_bytes = slack_bytes
        self._used: deque[int] = deque(maxlen=window_count)
        self._rest_bytes: int | None = None
        # Memory that the last attempt left, and the number of observations until it is tried again.
        self._stuck_bytes = 0
        self._stuck_count = 0
        self._pause_count = window_count
        # Heap in use when it was last known to contain no garbage.
        self._clean_bytes: int | None = None

    def has_garbage(self) -> bool:
        """Return whether there may be much garbage: usage has grown, and the process is quiet.

        Python's collector runs by the number of objects, not by their size, and so rarely in a server. Cyclic garbage
        of a connection, with buffers of megabytes, would stay until other objects are made.
        """
        least, most = min(self._used), max(self._used)
        if self._clean_bytes is None:
            self._clean_bytes = least
        is_quiet = len(self._used) == self._used.maxlen and most - least <= self._slack_bytes // 4
        return is_quiet and least > self._clean_bytes + self._slack_bytes // 4

    def collected(self, use: MemoryUse) -> None:
        """Record the usage after a garbage collection."""
        self._clean_bytes = use.used_bytes

    def observe(self, use: MemoryUse) -> bool:
        """Record an observation; return whether memory should be returned now.

        This also holds after few observations: an attack on a server that has just started is bounded, too.
        """
        rest = use.resident_bytes - use.used_bytes
        self._rest_bytes = rest if self._rest_bytes is None else min(self._rest_bytes, rest)
        self._used.append(use.used_bytes)
        self._stuck_count -= 1
        if self._stuck_count <= 0:
            self._stuck_bytes = 0
        return use.resident_bytes - self._rest_bytes - self._stuck_bytes - max(self._used) > self._slack_bytes

    def given_back(self, before: MemoryUse, after: MemoryUse) -> None:
        """Record the usage before and after memory was returned."""
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
    """Return the memory of this process; None if this system does not report it."""
    try:
        mallinfo2 = _LIBRARY.mallinfo2
        pages = Path("/proc/self/statm").read_bytes().split()[1]
    except (OSError, AttributeError):  # not Linux, a C library older than 2021, or not glibc
        return None
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return MemoryUse(info.uordblks + info.hblkhd, int(pages) * os.sysconf("SC_PAGE_SIZE"))


async def give_back_memory(clock: Clock) -> None:
    """Return freed memory to the system when it was unused for a while, until cancelled.

    For the process of a server only. Returns at once where the system does not support it.
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
