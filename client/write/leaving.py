"""The end of the `async with` of a writer: what is waited for, and which error is raised."""

import logging
from collections.abc import Awaitable, Callable

from millrace.client.exit_flush import WriterBacklog

logger = logging.getLogger(__name__)


async def leave(
    kind: type[BaseException] | None,
    *,
    close: Callable[[], Awaitable[None]],
    abandon: Callable[[], WriterBacklog],
    stream: str,
) -> None:
    """Close a writer; when the body was cancelled, abandon it, and wait for nothing.

    Args:
        kind: of the error that ended the body. It continues: what closing raises is only logged then.
        close: waits until everything is durable.
        abandon: returns what is not known to be stored, which is logged.
        stream: for the log.
    """
    if kind is None:
        await close()
    elif issubclass(kind, Exception):
        try:
            await close()
        except Exception as second:  # noqa: BLE001  # whatever it is, it must not hide the error of the body
            logger.warning("writes lost while leaving writer stream=%s error=%s", stream, second)
    else:
        log_abandoned(abandon(), stream=stream, cause=kind)


def log_abandoned(unstored: WriterBacklog, *, stream: str, cause: type[BaseException]) -> None:
    """Count in the log what a writer abandons that is not known to be stored."""
    if any(unstored):
        logger.warning(
            "writer abandoned stream=%s unacknowledged_events=%d unacknowledged_bytes=%d cause=%s",
            stream,
            unstored.events,
            unstored.bytes,
            cause.__name__,
        )
