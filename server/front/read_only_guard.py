"""Read-only guard of a container whose log has lost content: only what the rest of the log proves is answered.

What was appended and decided is told as far as it is left; more can only follow it. All else may have been changed by
what is lost, and is refused: an attribute, a cursor, how far a writer is. So is the answer that something is not there
(see `SegmentContainer.absent`), and that a transaction is not over (see `TransactionCommands.outcome`).
"""

from typing import Final

from millrace.server.container.log_loss import LogLoss
from millrace.wire import messages as m

ANSWERABLE_AFTER_LOSS: Final = (
    m.CreateStream,  # of one that is there; no other is created
    m.ExplainStream,
    m.GetIndex,
    m.GetSegment,
    m.GetStream,
    m.GetStreamHistory,
    m.GetTails,
    m.GetTransaction,
    m.ListSegments,
    m.ListStreams,
    m.Seek,
    m.SeekBefore,
)
"""Of the requests that `Handlers` carries out, those that are answered. Reads are, too."""


def check_answerable(message: m.Message, loss: LogLoss | None) -> None:
    """Raise ContentLostError if content is lost that the answer to a request may rest on."""
    if loss is not None and not isinstance(message, ANSWERABLE_AFTER_LOSS):
        raise loss.error()
