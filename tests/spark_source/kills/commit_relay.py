"""A relay between Spark and a server that knows a COMMIT: it holds one, loses it, or loses its answer."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from struct import Struct
from typing import Final

from millrace.wire import messages as m
from millrace.wire.framing import encode

_LENGTH: Final = Struct("<I")
_TYPE_OFFSET: Final = 8
_REQUEST_ID: Final = slice(16, 24)
_COMMIT: Final = int(m.CommitTransaction.type)

_PING: Final = encode(m.Ping())
_PING_INTERVAL_S: Final = 1.0

HOLD, LOSE, LOSE_ANSWER = "hold", "lose", "lose answer"


class _Pair:
    """A connection of a client, and that to the server for it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        # The request whose answer the client does not get, nor anything after it.
        self.lost_request = b""
        self.answered = threading.Event()

    def end(self) -> None:
        for each in (self.client, self.server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class CommitRelay:
    """Passes connections on to a server, in threads.

    Attributes:
        address: where clients connect.
    """

    def __init__(self, server_address: str) -> None:
        host, _, port = server_address.rpartition(":")
        self._server = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        # What becomes of the next COMMIT; empty: it is passed on.
        self._armed = ""
        self._lock = threading.Lock()
        self._came = threading.Event()
        self._released = threading.Event()
        self._done = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, action: str) -> None:
        """Let something happen to the next COMMIT, once."""
        for event in (self._came, self._released, self._done):
            event.clear()
        self._armed = action

    def wait(self, *, within_s: float) -> None:
        """Wait until that COMMIT has come."""
        if not self._came.wait(within_s):
            raise TimeoutError("no COMMIT came")

    def deliver(self, *, within_s: float) -> None:
        """Pass on the COMMIT that is held, and wait for its answer, which nobody gets."""
        self._released.set()
        if not self._done.wait(within_s):
            raise TimeoutError("the COMMIT was not answered")

    def close(self) -> None:
        """Take no more connections."""
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                try:
                    server = socket.create_connection(self._server)
                except OSError:
                    client.close()
                    continue
                threading.Thread(target=self._serve, args=(_Pair(client, server),), daemon=True).start()

    def _serve(self, pair: _Pair) -> None:
        back = threading.Thread(target=self._pass_back, args=(pair,), daemon=True)
        back.start()
        with suppress(OSError):
            for frame in _frames(pair.client):
                action = self._action_of(frame)
                if action == LOSE:
                    self._came.set()
                    break
                if action:
                    pair.lost_request = frame[_REQUEST_ID]
                    self._came.set()
                    if action == HOLD:
                        # A server closes connections on which nothing comes.
                        while not self._released.wait(_PING_INTERVAL_S):
                            pair.server.sendall(_PING)
                pair.server.sendall(frame)
                if action:
                    pair.answered.wait()
                    break
        pair.end()
        back.join()
        pair.client.close()
        pair.server.close()
        if pair.lost_request:
            self._done.set()

    def _pass_back(self, pair: _Pair) -> None:
        with suppress(OSError):
            for frame in _frames(pair.server):
                if not pair.lost_request:
                    pair.client.sendall(frame)
                elif frame[_REQUEST_ID] == pair.lost_request:
                    break
        pair.answered.set()
        pair.end()

    def _action_of(self, frame: bytes) -> str:
        """Return what is to happen to a frame."""
        if frame[_TYPE_OFFSET] != _COMMIT:
            return ""
        with self._lock:
            action, self._armed = self._armed, ""
        return action


def _frames(connection: socket.socket) -> Iterator[bytes]:
    """Yield the frames that come on a connection, until it ends."""
    waiting = b""
    while data := connection.recv(1 << 16):
        waiting += data
        while len(waiting) >= _LENGTH.size and len(waiting) >= (length := _LENGTH.unpack_from(waiting)[0]):
            yield waiting[:length]
            waiting = waiting[length:]
