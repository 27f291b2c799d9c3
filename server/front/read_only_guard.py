"""Read-only guard of a container whose log has lost content: only requests that the rest of the log can answer.

Appends and decisions that remain are reported; a loss can only have added to them. Everything else may have been
changed by the lost content, and is rejected: an attribute, a cursor, the progress of a writer. So is the answer that an
entity does not exist (see `SegmentContainer.absent`), and that a transaction is not over (see
`TransactionCommands.outcome`).
"""

from typing import Final

from millrace.server.container.log_loss import LogLoss
from millrace.wire import messages as m

ANSWERABLE_AFTER_LOSS: Final = (
    m.CreateStream,  # of an existing stream; no new one is created
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
"""The requests of `Handlers` that are answered. Reads are, too."""


def check_answerable(message: m.Message, loss: LogLoss | None) -> None:
    """Raise ContentLostError if content is lost that the answer to a request may rest on."""
    if loss is not None and not isinstance(message, ANSWERABLE_AFTER_LOSS):
        raise loss.error()
