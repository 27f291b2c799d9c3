"""Servers are started on folders in memory."""

from tests.support.folders import tmp_path

__all__ = ["tmp_path"]
