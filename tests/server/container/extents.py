"""Runs of appends as the memtable holds them, for tests."""

from millrace.server.container.memtable import Extent
from millrace.wire.append_run import AppendRun
from millrace.wire.framing import encode_append_header
from millrace.wire.limits import APPEND_HEADER_SIZE_BYTES


def extent(offset: int, *payloads: bytes, end_events: int = 0, sequence: int = 9, wall_time_us: int = 17) -> Extent:
    """Return the run of appends with these payloads."""
    frames = b"".join(encode_append_header(request_id=1, segment_id=5, payload=data) + data for data in payloads)
    sizes = {len(data) for data in payloads}
    run = AppendRun(
        segment_id=5,
        offset=offset,
        frames=frames,
        frame_count=len(payloads),
        frame_size=APPEND_HEADER_SIZE_BYTES + sizes.pop() if len(sizes) == 1 else 0,
        event_count=len(payloads),
    )
    return Extent(run, sequence=sequence, end_events=end_events, wall_time_us=wall_time_us)
