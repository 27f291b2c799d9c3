"""Looking again at a stream that changed between two requests about it, and not for ever."""

import asyncio
from random import random

from millrace.client.errors import MillraceError, RequestTimeoutError

from .channel import Channel


class Looks:
    """Looks at one stream for one purpose: how many there were, and until when there may be more."""

    def __init__(self, channel: Channel, stream: str, *, purpose: str, limit_s: float) -> None:
        self._channel = channel
        self._stream = stream
        self._purpose = purpose
        self._limit_s = limit_s
        self._deadline_s = asyncio.get_running_loop().time() + limit_s
        self._count = 0

    async def again(self, error: MillraceError | None = None, *, waits: bool = True) -> None:
        """Wait before the next look. Cancelling is safe.

        Args:
            error: what the last look ended with, if it was one.
            waits: False for a look that has to follow the last question at once.

        Raises:
            RequestTimeoutError: it would come too late; says what was tried.
        """
        self._count += 1
        wait_s = self._channel.options.backoff.wait_s(self._count, chance=random()) if waits else 0.0
        if asyncio.get_running_loop().time() + wait_s > self._deadline_s:
            raise RequestTimeoutError(
                f"{self._purpose}: {self._stream} changed each of {self._count} times between being asked which"
                f" segments it has and being asked about them, for {self._limit_s:g} s"
                + ("" if error is None else f"; the last answer was: {error}")
            ) from error
        await asyncio.sleep(wait_s)
