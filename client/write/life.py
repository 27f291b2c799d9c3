"""The life of a writer, which is told by why it takes nothing: it is not open yet, or was closed, or has failed."""

from millrace.client.errors import ClientClosedError, NotOpenError
from millrace.client.exit_flush import WriterBacklog
from millrace.model.errors import InvalidArgumentError, MillraceError

from .delivery import Delivery


def state_of(refusal: MillraceError | None) -> str:
    """Return in a few words the state of what takes nothing for a reason, or everything if there is none."""
    if refusal is None:
        return "open"
    if isinstance(refusal, NotOpenError):
        return "not open yet"
    return "closed" if isinstance(refusal, ClientClosedError) else f"failed with {type(refusal).__name__}"


def check_new(refusal: MillraceError | None) -> None:
    """Raise unless a writer is not open yet: each is opened once.

    Raises:
        InvalidArgumentError: it is open.
        MillraceError: it was closed, or has failed.
    """
    if refusal is None:
        raise InvalidArgumentError("the writer is open already: a writer is opened once")
    if not isinstance(refusal, NotOpenError):
        raise refusal.with_traceback(None)


def unstored_of(delivery: Delivery) -> WriterBacklog:
    """Return the events that are not known to be stored, without those for which a caller has seen an error."""
    if delivery.failure is None and isinstance(delivery.refusal, ClientClosedError):
        return WriterBacklog()
    lost_count = 0 if delivery.failure is None else delivery.lost_count
    return WriterBacklog(events=delivery.held_count + delivery.refused.count + lost_count)
