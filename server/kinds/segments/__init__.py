"""Segments: what a container stores. Their records and tables are its own; here are the requests about them."""

from dataclasses import replace
from typing import Final

from millrace.server.container.checkpoint import segment_tables
from millrace.server.container.container import SegmentContainer
from millrace.server.container.kind import Kind
from millrace.server.container.service import Collaborators, RunningService, Service
from millrace.server.container.state.segment import Segment

from .requests import SegmentRequests


def _begin(made: Collaborators) -> RunningService:
    return RunningService(requests=[SegmentRequests(made.get(SegmentContainer))])


SEGMENTS: Final[Kind[Segment]] = replace(segment_tables.SEGMENTS, service=Service(begin=_begin))
