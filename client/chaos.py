"""Kills, stalls and cuts a test server on a schedule, so that a program is tested as Millrace itself is.

    with millrace.testing.server() as server, millrace.testing.chaos(server, seed=7) as chaos:
        run(chaos.address)          # the program; it must survive all of it
        chaos.wait(3)               # not before three disturbances are over

A program connects to `chaos.address`, a relay. Nothing happens before it does: a client that finds no server when it
connects for the first time says so at once, and waits for one only later. What happens is drawn from a seed, and so are
the times between: a test that fails is repeated with its seed. When exactly the program is met depends on the machine
nevertheless.

The idea is Chaos Monkey's: recovery that is never exercised does not work.
"""

import logging
import os
import random
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Final, NamedTuple, Self

from millrace.model.shown import PublicNames

from .testing import TestServer

_logger: Final = logging.getLogger(__name__)

CUT_AFTER_BYTES_MAX: Final = 64 * 1024
CUT_WITHIN_S: Final = 0.2
"""A connection without traffic is cut after so long."""
_RECEIVE_SIZE_BYTES: Final = 256 * 1024


class Action(StrEnum):
    """What is done to a server.

    Attributes:
        KILL: SIGKILL, and after a while it is started again.
        STALL: the process stands still for a while (SIGSTOP), as in a long pause of a disk or of a machine.
        CUT: all connections are lost, most in the middle of a message; the server lives.
    """

    KILL = "kill"
    STALL = "stall"
    CUT = "cut"


class Disturbance(NamedTuple):
    """One entry of the schedule.

    Attributes:
        after_s: how long after the one before was over; or after the first connection.
        length_s: how long the server is down, or stands still; 0 for a cut.
        cut_after_bytes: how much more is passed on before connections are cut, in both directions together.
    """

    after_s: float
    action: Action
    length_s: float
    cut_after_bytes: int

    def __str__(self) -> str:
        length = f" for {self.length_s:.2f} s" if self.length_s else f" after {self.cut_after_bytes} bytes"
        return f"{self.action}{length}"


def schedule(
    seed: int, *, actions: Sequence[Action], every_s: tuple[float, float], length_s: tuple[float, float]
) -> Iterator[Disturbance]:
    """Yield what a seed lets happen, without end."""
    dice = random.Random(seed)
    while True:
        after_s, action = dice.uniform(*every_s), dice.choice(actions)
        length = dice.uniform(*length_s)
        cut_after = dice.randrange(CUT_AFTER_BYTES_MAX)
        is_cut = action is Action.CUT
        yield Disturbance(after_s, action, 0.0 if is_cut else length, cut_after if is_cut else 0)


class Chaos(PublicNames):
    """Disturbs a server from `start` to `stop`, in a thread of its own. See `chaos`."""

    def __init__(
        self,
        server: TestServer,
        *,
        seed: int | None = None,
        actions: Sequence[Action | str] = tuple(Action),
        every_s: tuple[float, float] = (0.2, 1.0),
        length_s: tuple[float, float] = (0.0, 0.5),
    ) -> None:
        for name, (low, high) in {"every_s": every_s, "length_s": length_s}.items():
            if not 0 <= low <= high:
                raise ValueError(f"{name} is a least and a greatest time in seconds, not {(low, high)}")
        if not actions:
            raise ValueError("there is no action; leave `actions` out for all of them")
        self.seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
        self._server = server
        self._schedule = schedule(
            self.seed, actions=[Action(each) for each in actions], every_s=every_s, length_s=length_s
        )
        self._relay = _Relay(server.address)
        self._over: list[Disturbance] = []
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="millrace-chaos", daemon=True)

    @property
    def address(self) -> str:
        """Host and port where the program connects."""
        return self._relay.address

    @property
    def over(self) -> tuple[Disturbance, ...]:
        """The disturbances so far, oldest first."""
        with self._changed:
            return tuple(self._over)

    def start(self) -> None:
        """Begin with the schedule as soon as somebody connects."""
        self._thread.start()

    def wait(self, count: int, *, timeout_s: float = 60.0) -> None:
        """Wait until so many disturbances are over, from the beginning. It blocks the thread.

        Raises:
            TimeoutError: they are not.
            RuntimeError: the server did not start again.
        """
        with self._changed:
            is_done = self._changed.wait_for(
                lambda: len(self._over) >= count or self._failure is not None, timeout=timeout_s
            )
            self._check()
            if not is_done:
                raise TimeoutError(f"{len(self._over)} of {count} disturbances in {timeout_s:g} s")

    def stop(self) -> None:
        """End the schedule: the server runs again, and connections are cut no more. The relay still passes on.

        Raises:
            RuntimeError: the server did not start again.
        """
        self._stopping.set()
        self._relay.used.set()
        if self._thread.is_alive():
            self._thread.join()
        self._check()

    def close(self) -> None:
        """End the schedule, and the relay with its connections."""
        try:
            self.stop()
        finally:
            self._relay.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            self.close()
        finally:
            if error is not None:
                error.add_note(str(self))

    def __str__(self) -> str:
        told = ", ".join(map(str, self.over)) or "nothing yet"
        return f"chaos with seed={self.seed}: {told}"

    def _check(self) -> None:
        if self._failure is not None:
            raise RuntimeError(f"the server did not start again; {self}") from self._failure

    def _run(self) -> None:
        self._relay.used.wait()
        try:
            for each in self._schedule:
                if self._stopping.wait(each.after_s):
                    return
                _logger.info("%s", each)
                self._disturb(each)
                with self._changed:
                    self._over.append(each)
                    self._changed.notify_all()
        except (RuntimeError, OSError) as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _disturb(self, each: Disturbance) -> None:
        match each.action:
            case Action.KILL:
                self._server.kill()
                self._stopping.wait(each.length_s)
                self._server.start()
            case Action.STALL:
                process = self._server.pid
                os.kill(process, signal.SIGSTOP)
                try:
                    self._stopping.wait(each.length_s)
                finally:
                    os.kill(process, signal.SIGCONT)
            case Action.CUT:
                self._relay.cut(after_bytes=each.cut_after_bytes, within_s=CUT_WITHIN_S)


@contextmanager
def chaos(
    server: TestServer,
    *,
    seed: int | None = None,
    actions: Sequence[Action | str] = tuple(Action),
    every_s: tuple[float, float] = (0.2, 1.0),
    length_s: tuple[float, float] = (0.0, 0.5),
) -> Iterator[Chaos]:
    """Disturb a test server from the first connection to the end of a `with` block; afterwards it runs.

    The block must not start or stop the server itself. An error that leaves the block has a note with the seed and what
    happened.

    Args:
        seed: of the schedule; a new one if it is left out.
        actions: "kill", "stall", "cut"; all are as likely.
        every_s: the least and the greatest time between two disturbances.
        length_s: how long at least and at most the server is down, or stands still.

    Raises:
        ValueError: no such action, or a time is negative.
        RuntimeError: at the end: the server did not start again.
    """
    with Chaos(server, seed=seed, actions=actions, every_s=every_s, length_s=length_s) as running:
        yield running


class _Relay:
    """Passes connections on to a server, with two threads for each, until they are cut.

    Attributes:
        address: where clients connect.
        used: set by the first connection.
    """

    def __init__(self, server_address: str) -> None:
        self.used = threading.Event()
        host, _, port = server_address.rpartition(":")
        self._server = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._is_closed = False
        # How much more is passed on before the next cut; None: there is none to come.
        self._left: int | None = None
        self._was_cut = threading.Event()
        threading.Thread(target=self._accept, name="millrace-relay", daemon=True).start()

    def cut(self, *, after_bytes: int, within_s: float) -> None:
        """Cut all connections once so much more was passed on, or after so long; later ones live. It blocks."""
        with self._lock:
            self._was_cut.clear()
            self._left = after_bytes
        if not self._was_cut.wait(within_s):
            self._cut()

    def close(self) -> None:
        """Take no more connections, and end those that there are."""
        with self._lock:
            self._is_closed = True
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listening.close()
        self._cut()

    def _cut(self) -> None:
        with self._lock:
            self._left = None
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # the threads close it
        self._was_cut.set()

    def _accept(self) -> None:
        with suppress(OSError):  # the relay is closed
            while True:
                client, _ = self._listening.accept()
                try:
                    server = socket.create_connection(self._server)
                except OSError:
                    client.close()  # the server is down: as if nobody listened
                    continue
                with self._lock:
                    if self._is_closed:
                        client.close()
                        server.close()
                        return
                    self._sockets |= {client, server}
                self.used.set()
                threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        with client, server:
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=self._pass_on, args=(server, client), daemon=True)
            back.start()
            self._pass_on(client, server)
            back.join()
            with self._lock:
                self._sockets -= {client, server}

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        buffer = memoryview(bytearray(_RECEIVE_SIZE_BYTES))
        with suppress(OSError):
            while size := source.recv_into(buffer):
                allowed = self._allowed(size)
                target.sendall(buffer[:allowed])
                if allowed < size:
                    self._cut()
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _allowed(self, size: int) -> int:
        with self._lock:
            if self._left is None:
                return size
            allowed = min(size, self._left)
            self._left -= allowed
            return allowed
