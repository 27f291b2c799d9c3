"""Checks of transactions for `millrace verify`."""

from collections.abc import Iterator

from millrace.server.container.state.container_state import ContainerState
from millrace.server.container.state.transaction import PART_NAME


def problems(state: ContainerState) -> Iterator[str]:
    """Yield open transactions without their streams or parts, and parts without an open transaction."""
    for number, transaction in sorted(state.open_transactions.by_number.items()):
        name = f"transaction {transaction.name or number}"
        for stream_id in (each.stream_id for each in transaction.streams):
            stream = state.streams.get(stream_id)
            if stream is None or stream.sealed:
                yield f"{name} is open over stream {stream_id}, which accepts no events"
        for segment_id in transaction.parts:
            if segment_id not in state.segments:
                yield f"{name} has segment {segment_id} as a part, which does not exist"
    for segment in state.segments.values():
        is_part = segment.name.startswith(PART_NAME) and segment.link is None
        if state.quarantine.get("segments", segment.segment_id) is not None:
            continue
        if is_part and state.open_transactions.owner(segment.segment_id) is None:
            yield f"{segment.name} is not a part of any open transaction"
