"""How the process keeps the memory it has freed.

By default the C library gives large blocks back to the system when they are freed, and asks for fresh ones for the next
buffers. The first touch of each fresh page is a fault: cheap on bare metal, but on a virtual machine it was measured at
0.4 to 1.8 GB/s, far below what the log writes. A server whose buffers come and go all day is better off keeping them:
its memory is bounded anyway, by the bounds of its buffers.
"""

import ctypes
import logging
import sys
from typing import Final

logger = logging.getLogger(__name__)

# Numbers of <malloc.h> of the GNU C library.
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3

_KEPT_BYTES: Final = 1 << 30
_GROWTH_BYTES: Final = 16 << 20
_LARGEST_BLOCK_BYTES: Final = 32 << 20


def keep_freed_memory() -> bool:
    """Tell the allocator to keep up to 1 GiB of freed memory for reuse; return whether it understood.

    For the process of a server only, once, at its start: it is a setting of the whole process.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl has no mallopt, and other habits
        return False
    done = (
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK_BYTES)
        and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        and mallopt(_M_TOP_PAD, _GROWTH_BYTES)
    )
    logger.debug("freed memory kept=%s", bool(done))
    return bool(done)
