"""Internal segments, as the server's own code makes them."""

import asyncio

from millrace.server.container.container import SegmentContainer
from millrace.server.container.state.segment import Segment
from millrace.server.kinds.segments.commands import SegmentCommands
from millrace.wire.append_scan import scan_run
from millrace.wire.framing import encode_append_header


class Appender:
    """An owner of appends that waits until they are settled."""

    def __init__(self) -> None:
        self.settled = asyncio.Event()

    def settle(self) -> None:
        self.settled.set()


async def internal_segment(container: SegmentContainer, kind: str, name: str, payload: bytes = b"") -> Segment:
    """Create an internal segment and store an append in it, if `payload` is not empty."""
    segment = await SegmentCommands(container).create_internal(kind, name)
    if payload:
        frames = bytes(encode_append_header(request_id=1, segment_id=segment.segment_id, payload=payload)) + payload
        run = scan_run(bytearray(frames), memoryview(frames), start=0, end=len(frames))
        assert run is not None
        owner = Appender()
        container.append(run, owner, is_internal=True)
        await owner.settled.wait()
    return segment
