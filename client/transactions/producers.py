"""Queries about producers, resets that give a writer id to another holder, and deletion."""

from dataclasses import dataclass

from millrace.client.transport.channel import Channel
from millrace.model.errors import InvalidArgumentError
from millrace.model.names import checked_holder, checked_writer_id
from millrace.model.producer import NO_HOLDER, NO_RUN
from millrace.model.sequence_row import NO_SEQUENCE, SEQUENCE_MAX
from millrace.model.shown import ShortRepr
from millrace.wire import messages as m


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProducerInfo(ShortRepr):
    """State of a producer on the server.

    Attributes:
        holder: the program that uses the writer id; None after a reset without a new holder, when any holder may take
            over.
        run: the run that took over last; None if none has since a reset.
        last_sequence: the highest sequence that the holder has committed; None if none.
        fenced_runs: fenced runs, oldest first; the server forgets the oldest ones.
        fingerprint: of the content of the last sequence, as passed to its commit; None if none was passed.
    """

    writer_id: str
    holder: str | None
    run: str | None
    last_sequence: int | None
    fenced_runs: tuple[str, ...]
    fingerprint: str | None = None


async def producer_info(channel: Channel, writer_id: str) -> ProducerInfo:
    """Return the state of a producer. Raises like `Client.producer_info`."""
    info = await channel.request(m.GetProducer(checked_writer_id(writer_id)))
    return ProducerInfo(
        writer_id=info.producer_id,
        holder=None if info.holder == NO_HOLDER else info.holder,
        run=None if info.run == NO_RUN else info.run,
        last_sequence=None if info.last_sequence == NO_SEQUENCE else info.last_sequence,
        fenced_runs=tuple(run for (run,) in info.fenced),
        fingerprint=info.fingerprint or None,
    )


async def reset_producer(channel: Channel, writer_id: str, *, holder: str | None) -> bool:
    """Give the writer id of a producer to another holder. Raises like `Client.reset_producer`.

    The request names the current holder, so a retry cannot take the id from a later holder.
    """
    wanted = NO_HOLDER if holder is None else checked_holder(holder)
    info = await channel.request(m.GetProducer(checked_writer_id(writer_id)))
    request = m.ResetProducer(producer_id=writer_id, expected_holder=info.holder, holder=wanted)
    return bool((await channel.request(request)).changed)


async def delete_producer(channel: Channel, writer_id: str, *, last_sequence: int | None) -> bool:
    """Delete a producer. Raises like `Client.delete_producer`."""
    expected = NO_SEQUENCE if last_sequence is None else last_sequence
    if type(expected) is not int or not NO_SEQUENCE <= expected <= SEQUENCE_MAX:
        raise InvalidArgumentError(f"last_sequence must be 0 to {SEQUENCE_MAX}, not {last_sequence!r}")
    request = m.DeleteProducer(producer_id=checked_writer_id(writer_id), last_sequence=expected)
    return bool((await channel.request(request)).changed)
