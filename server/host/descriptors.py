"""How many descriptors the process may have.

The usual limit of 1024 is a courtesy to programs that call `select`. A server that runs into it cannot open the next
file of its log; so the limit is raised as far as the system allows, and connections are shed before the rest is gone.
"""

import logging
import resource

logger = logging.getLogger(__name__)


def raise_descriptor_limit() -> int:
    """Raise the limit on descriptors of this process as far as is allowed, and return it.

    For the process of a server only, once, at its start: it is a setting of the whole process.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as error:  # macOS says "unlimited" and means less
        logger.info("descriptor limit stays limit=%d error=%s", soft, error)
    return descriptor_limit()


def descriptor_limit() -> int:
    """Return how many descriptors this process may have now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 30
