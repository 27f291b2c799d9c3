"""A real server in a child process, for tests: see `millrace.client.testing`."""

from millrace.client.testing import TestServer, server

__all__ = ["TestServer", "server"]
