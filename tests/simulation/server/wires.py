"""Connections without a network: bytes take their time, arrive in pieces and in order, until a connection is cut.

Each end belongs to the process that made it, or that listens: what arrives for a frozen process waits for it.
"""

import asyncio
import contextvars
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from millrace.model.checksum import Buffer
from millrace.wire.limits import KIB
from tests.simulation.virtual_loop import LIFE, Life

WINDOWS: Final = (4 * KIB, 64 * KIB, 256 * KIB)
"""How many bytes are on their way at most, before a sender has to hold them."""
LATENCIES_S: Final = (0.0001, 0.001, 0.02)
"""The mean time of a piece from one end to the other; each connection has one."""
PIECES: Final = (1 << 20, 1 << 20, 1 << 20, 4 * KIB, 100)
"""The largest piece in which bytes arrive; each connection has one."""


@dataclass(slots=True)
class Listener:
    """Fills in for an `asyncio.Server`."""

    make: Callable[[], asyncio.BaseProtocol]
    context: Context
    is_serving: bool = False
    sockets: tuple[()] = ()

    async def start_serving(self) -> None:
        self.is_serving = True

    def close(self) -> None:
        self.is_serving = False


class Wires:
    """All connections of a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, dice: Random) -> None:
        self.loop = loop
        self.dice = dice
        self._listeners: dict[tuple[str, int], Listener] = {}
        self.ends: dict[End, None] = {}

    def listen(self, host: str, port: int, make: Callable[[], asyncio.BaseProtocol]) -> Listener:
        """Return who listens at an address; whoever did before does no more."""
        listener = self._listeners[host, port] = Listener(make, contextvars.copy_context())
        return listener

    def end_process(self, life: Life) -> None:
        """Lose all ends of a process that was killed, and refuse whoever connects to it."""
        for listener in self._listeners.values():
            if listener.context.get(LIFE) is life:
                listener.close()
        for end in list(self.ends):
            if end.context.get(LIFE) is life:
                end.vanish()
                end.peer.lose(ConnectionResetError("the peer has ended"))

    async def connect(
        self, host: str, port: int, make: Callable[[], asyncio.BaseProtocol]
    ) -> tuple["End", asyncio.BaseProtocol]:
        """Return an open connection and the protocol of its near end.

        Raises:
            ConnectionRefusedError: nobody listens.
        """
        latency_s = self.dice.choice(LATENCIES_S)
        await asyncio.sleep(latency_s * self.dice.random())
        listener = self._listeners.get((host, port))
        if listener is None or not listener.is_serving:
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")
        near = End(self, contextvars.copy_context(), latency_s)
        far = End(self, listener.context, latency_s)
        near.peer, far.peer = far, near
        near.protocol = make()
        near.is_made = True
        near.protocol.connection_made(near)
        far.make = listener.make
        far.arrive_soon()
        return near, near.protocol

    def cut(self, end: "End") -> None:
        """Lose a connection: both ends notice, each at its own time; what was on its way may be lost."""
        end.lose(ConnectionResetError("the connection was cut"))
        end.peer.lose(ConnectionResetError("the connection was cut"))


class End(asyncio.Transport):
    """One end of a connection, with what is on its way to it.

    Attributes:
        make: makes the protocol once the connection has arrived at this end.
    """

    peer: "End"
    protocol: Any
    make: Callable[[], asyncio.BaseProtocol]

    def __init__(self, wires: Wires, context: Context, latency_s: float) -> None:
        super().__init__()
        dice = wires.dice
        self._wires = wires
        self.context = context
        self._latency_s = latency_s
        self._window_bytes = dice.choice(WINDOWS)
        self._piece_bytes = dice.choice(PIECES)
        # On its way to this end. After the last byte comes the end, if the peer has closed.
        self._coming = bytearray()
        self._is_ending = False
        self._is_arriving = False
        self._is_reading = True
        self._is_closing = False
        self._is_lost = False
        self._high_bytes = 64 * KIB
        self._is_held = False
        self.is_made = False
        wires.ends[self] = None

    # --- what a protocol asks ---

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.1", 40000) if name == "peername" else default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self.protocol
        return protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self.arrive_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = 64 * KIB if high is None else high

    def get_write_buffer_size(self) -> int:
        return max(0, len(self.peer._coming) - self._window_bytes)

    def write(self, data: Buffer) -> None:
        if self._is_closing or self.peer._is_lost:
            return
        self.peer._coming += data
        self.peer.arrive_soon()
        if not self._is_held and self.get_write_buffer_size() > self._high_bytes:
            self._is_held = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self.peer._is_ending = True
            self.peer.arrive_soon()
            self._call_soon(self._be_lost, None)

    def abort(self) -> None:
        self._is_closing = True
        self._call_soon(self._be_lost, None)
        self.peer.lose(ConnectionResetError("the peer has reset the connection"))

    # --- what happens to it ---

    def lose(self, error: OSError) -> None:
        """Lose the connection after a while; of what is on its way some pieces still arrive."""
        delay_s = self._latency_s * self._wires.dice.expovariate(1.0)
        self._wires.loop.call_later(delay_s, self._be_lost, error, context=self.context)

    def vanish(self) -> None:
        """Be no more, with the process that this end belongs to: nothing leaves it from now on."""
        self._is_lost = self._is_closing = True
        self._wires.ends.pop(self, None)

    def arrive_soon(self) -> None:
        """Let the next piece arrive after its time."""
        if not self._is_arriving and not self._is_lost:
            self._is_arriving = True
            delay_s = self._latency_s * self._wires.dice.uniform(0.5, 1.5)
            self._wires.loop.call_later(delay_s, self._arrive, context=self.context)

    def _arrive(self) -> None:
        self._is_arriving = False
        if self._is_lost:
            return
        if not self.is_made:
            self.is_made = True
            self.protocol = self.make()
            self.protocol.connection_made(self)
        elif self._coming and self._is_reading and not self._is_closing:
            piece = bytes(self._coming[: self._piece_bytes])
            del self._coming[: len(piece)]
            self.peer.taken()
            self._hand_over(piece)
        elif self._is_ending and not self._coming:
            if not self._is_closing and not self.protocol.eof_received():
                self.close()
            return
        else:
            return
        if self._coming or self._is_ending:
            self.arrive_soon()

    def taken(self) -> None:
        """Notice that the peer has taken a piece."""
        if self._is_held and not self._is_lost and self.get_write_buffer_size() <= self._high_bytes // 4:
            self._is_held = False
            self._call_soon(self._resume_writing)

    def _resume_writing(self) -> None:
        if not self._is_lost:
            self.protocol.resume_writing()

    def _hand_over(self, data: bytes) -> None:
        protocol = self.protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(data)
            return
        view = memoryview(data)
        while view and not self._is_closing:
            buffer = memoryview(protocol.get_buffer(-1)).cast("B")
            size = min(len(buffer), len(view))
            buffer[:size] = view[:size]
            protocol.buffer_updated(size)
            view = view[size:]

    def _be_lost(self, error: OSError | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._wires.ends.pop(self, None)
        if self.is_made:
            self.protocol.connection_lost(error)

    def _call_soon(self, callback: Callable[..., object], *args: object) -> None:
        self._wires.loop.call_soon(callback, *args, context=self.context)
