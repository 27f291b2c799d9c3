"""For tests of programs: a real server in a child process, and what disturbs it.

See `millrace.client.testing` and `millrace.client.chaos`.
"""

from millrace.client.chaos import Action, Chaos, Disturbance, chaos
from millrace.client.testing import TestServer, server

__all__ = ["Action", "Chaos", "Disturbance", "TestServer", "chaos", "server"]


def __dir__() -> list[str]:
    return __all__
