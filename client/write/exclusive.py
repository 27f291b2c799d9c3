"""Releases a stream if an exclusive writer without an id does not end normally.

Nobody can reopen such a writer: without a release, the stream rejects all other writers until the writer expires.
"""

import asyncio
import logging
from functools import partial
from typing import Any, Final

from millrace.client.transport.channel import Channel
from millrace.model.errors import MillraceError
from millrace.wire import messages as m

logger = logging.getLogger(__name__)

CANCELLED_WAIT_S: Final = 1.0
"""Time limit for the reply to a cancelled opening: a later repetition could take the stream from another writer."""

OPENING_NAME: Final = "open an exclusive writer"
"""Name of the task of an opening."""


def release_soon(channel: Channel, request: m.ReleaseStream) -> None:
    """Send the release at once, without waiting for the reply. A release that fails is logged."""
    assert request.writer_number > 0  # 0 would release the stream from any writer
    connection = channel.live
    if connection is None:
        logger.warning("stream not released stream_id=%d error=the connection is lost", request.stream_id)
        return
    try:
        connection.send_request(request).add_done_callback(_forget)
    except MillraceError as error:
        logger.warning("stream not released stream_id=%d error=%s", request.stream_id, error)


async def open_exclusive(channel: Channel, request: m.OpenWriter) -> m.WriterOpened:
    """Open an exclusive writer without an id. If this is cancelled, release a stream that the server has opened."""
    task = asyncio.create_task(channel.request(request), name=OPENING_NAME)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(partial(_release_opened, channel, request.stream_id))
        asyncio.get_running_loop().call_later(CANCELLED_WAIT_S, task.cancel)
        raise


def _release_opened(channel: Channel, stream_id: int, task: "asyncio.Task[m.WriterOpened]") -> None:
    if not task.cancelled() and task.exception() is None:
        opened = task.result()
        number, epoch = opened.writer_number, opened.writer_epoch
        release_soon(channel, m.ReleaseStream(stream_id=stream_id, writer_number=number, writer_epoch=epoch))


def _forget(reply: "asyncio.Future[Any]") -> None:
    if not reply.cancelled():
        reply.exception()
