"""Observers of the state, which know nothing of Millrace: they speak HTTP, and come back where they were cut off."""

import http.client
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http import HTTPStatus
from itertools import islice, takewhile
from typing import Final
from urllib.parse import urlsplit

from .messages import Message, Messages
from .state import State, sensor_of

RETRY_S: Final = 0.2
SILENCE_S: Final = 60.0
"""The server sends a comment every 15 s: after so long without a line, it is taken for gone."""

Fetch = Callable[[str, str], AbstractContextManager[Iterable[bytes]]]
"""Asks for a URL from a place on (empty: from where the URL says), and gives the lines of the answer as they come.

Raises:
    OverError: nothing will come after that place.
    OSError, http.client.HTTPException: it cannot be had, or ends before its time.
"""


class OverError(Exception):
    """Nothing will come any more."""


class WrongError(Exception):
    """A change is missing, came twice, or in the wrong order."""


class Observer:
    """Follows the state in a thread of its own, for as long as it takes; it comes back whenever it was cut off.

    Args:
        url: of the feed.
        fetch: how it is asked for.
        leaves_after: it leaves by itself each time that it has seen so many changes; None for never.

    Attributes:
        changes: how many it has seen.
        connections: how often it has asked for the feed.
    """

    def __init__(self, url: str, fetch: Fetch, *, leaves_after: int | None = None) -> None:
        self._url = url
        self._fetch = fetch
        self._leaves_after = leaves_after
        self._messages = Messages()
        self._stopped = threading.Event()
        self.state: State = {}
        self.changes = 0
        self.connections = 0

    def follow(self) -> None:
        """Follow the state until the feed says that nothing more will come, or until `stop`. Blocks.

        Raises:
            WrongError: what was seen is not what a state can go through, each change once.
        """
        while not self._stopped.is_set():
            self.connections += 1
            try:
                with self._fetch(self._url, self._messages.last_id) as lines:
                    for message in islice(self._messages.read(lines), self._leaves_after):
                        self._take(message)
            except OverError:  # it had left, or was cut off, between the last change and the end
                self.stop()
            except (OSError, http.client.HTTPException):
                pass
            self._stopped.wait(RETRY_S)

    def stop(self) -> None:
        """Come back no more. May be called from any thread."""
        self._stopped.set()

    def _take(self, message: Message) -> None:
        if message.event == "end":
            self.stop()
        elif message.event == "message":
            content = message.content()
            name, sensor = content["key"], sensor_of(content["value"])
            before = self.state[name].count if name in self.state else 0
            if sensor.count != before + 1:
                raise WrongError(f"of {name} change {sensor.count} came after change {before}")
            self.state[name] = sensor
            self.changes += 1
        else:
            raise WrongError(f"{message.event}: {message.data}")


@contextmanager
def by_http(url: str, last_id: str) -> Iterator[Iterable[bytes]]:
    """Ask with the HTTP client of Python's standard library. See `Fetch`."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=SILENCE_S)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}", headers={"Last-Event-ID": last_id} if last_id else {})
        response = connection.getresponse()
        _check(response.status)
        yield response
    finally:
        connection.close()


@contextmanager
def by_curl(url: str, last_id: str) -> Iterator[Iterable[bytes]]:
    """Ask with curl, which has to be installed. See `Fetch`."""
    command = ["curl", "--silent", "--include", "--no-buffer", "--header", f"Last-Event-ID: {last_id}", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            head = list(takewhile(bytes.strip, process.stdout))
            if not head:
                raise OSError("no server could be reached")
            _check(int(head[0].split()[1]))
            yield process.stdout
        finally:
            process.kill()


def _check(status: int) -> None:
    if status == HTTPStatus.NO_CONTENT:
        raise OverError
    if status != HTTPStatus.OK:
        raise OSError(f"the feed is refused with {status}")
