"""File descriptor limits.

A process may be started with its standard streams closed. The next file that it opens, for example of the log, would
then get the number of a standard stream, and anything written to standard error would go into that file. So the
standard descriptors are occupied first.

The usual limit of 1024 is a courtesy to programs that call `select`. A server at the limit cannot open the next file of
its log. So the limit is raised as far as the system allows, and connections are shed before the rest is used.
"""

import logging
import os
import resource
import sys
from typing import Final

logger = logging.getLogger(__name__)

STANDARD_STREAMS: Final = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def occupy_standard_descriptors() -> None:
    """Open the null device for each standard stream that is closed.

    For the process of a program only, once, before it opens anything else.
    """
    for number, (name, mode) in enumerate(STANDARD_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            assert null == number, "open returns the lowest free descriptor"
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def raise_descriptor_limit() -> int:
    """Raise the descriptor limit of this process as far as the system allows, and return it.

    For the process of a server only, once, at its start: the limit applies to the whole process.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as error:  # macOS reports "unlimited" but accepts less
        logger.info("descriptor limit not raised limit=%d error=%s", soft, error)
    return descriptor_limit()


def descriptor_limit() -> int:
    """Return how many descriptors this process may have now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 30
