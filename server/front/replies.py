"""Error replies: the one place where an exception becomes a message."""

import logging
from typing import Final

from millrace.model.errors import InvalidArgumentError, InvalidNameError
from millrace.server.errors import ServerError
from millrace.wire import messages as m
from millrace.wire.errors import ErrorCode, WireError

logger = logging.getLogger(__name__)

MESSAGE_LENGTH_MAX: Final = 1000
"""Characters of a text in a reply; longer text is cut."""


def error_reply(error: BaseException) -> m.ErrorReply:
    """Return the reply for an error; an unexpected one is logged and reported as internal, without details."""
    if isinstance(error, ServerError):
        return m.ErrorReply(
            code=error.code,
            retriable=error.retriable,
            retry_after_ms=error.retry_after_ms,
            start_offset=error.start_offset,
            start_index=error.start_index,
            length=error.length,
            subject=error.subject[:MESSAGE_LENGTH_MAX],
            message=error.message[:MESSAGE_LENGTH_MAX],
        )
    if isinstance(error, WireError):
        return m.ErrorReply(code=error.code, message=str(error)[:MESSAGE_LENGTH_MAX])
    if isinstance(error, InvalidArgumentError):
        code = ErrorCode.INVALID_NAME if isinstance(error, InvalidNameError) else ErrorCode.INVALID_ARGUMENT
        return m.ErrorReply(code=code, message=str(error)[:MESSAGE_LENGTH_MAX])
    logger.error("request failed unexpectedly", exc_info=error)
    return m.ErrorReply(code=ErrorCode.INTERNAL, message="internal error of the server; see its log")
