"""Checks of exclusive writers for `millrace verify`."""

from collections.abc import Iterator

from millrace.server.container.state.container_state import ContainerState


def problems(state: ContainerState) -> Iterator[str]:
    """Yield the exclusive writers that do not exist any more, or whose streams do not."""
    for stream_id, writer in sorted(state.durable.exclusive_writers.items()):
        stream, known = state.streams.get(stream_id), state.writers.get(writer.number)
        if stream is None or stream.sealed:
            yield f"{writer} is the exclusive writer of stream {stream_id}, which accepts no events"
        elif known is None or known.row.expired_us or known.row.epoch < writer.epoch:
            yield f"{stream.name} accepts events only from {writer}, which was never opened, or has expired"
