"""The event loop of servers and clients that are simulated whole: it owns their threads and their connections."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context
from random import Random
from typing import Any, TypeVar, TypeVarTuple, Unpack

from greenlet import GreenletExit

from tests.simulation.virtual_loop import VirtualLoop

from .threads import GreenThreads
from .wires import End, Listener, Wires

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class ServerLoop(VirtualLoop):
    """A virtual loop on which whole servers run."""

    def __init__(self, dice: Random) -> None:
        super().__init__()
        self._dice = dice
        self.threads = GreenThreads(self, Random(dice.getrandbits(64)))
        self.wires = Wires(self, Random(dice.getrandbits(64)))
        self._readers: dict[int, tuple[Callable[..., object], tuple[Any, ...], Context]] = {}

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Call a function in a thread of the simulation."""
        done: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if done.cancelled() and self._dice.random() < 0.5:
                return  # before a thread of the executor was free
            try:
                result = func(*args)
            except GreenletExit:
                raise
            except BaseException as error:  # noqa: BLE001  # whatever it is, it is for who waits
                if not done.done():
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(result)

        self.threads.start(work)
        return done

    def add_reader(self, fd: Any, callback: Callable[[Unpack[Ts]], Any], *args: *Ts) -> None:
        """Watch a bell of `GreenThreads`."""
        self._readers[fd] = callback, args, contextvars.copy_context()

    def remove_reader(self, fd: Any) -> bool:
        """Watch a bell no longer."""
        return self._readers.pop(fd, None) is not None

    def make_ready(self, descriptor: int) -> None:
        """Call the reader of a bell soon."""
        if (reader := self._readers.get(descriptor)) is not None:
            self.call_later(self.threads.delay_s(), self._read, descriptor, context=reader[2])

    def _read(self, descriptor: int) -> None:
        if (reader := self._readers.get(descriptor)) is not None:
            reader[0](*reader[1])

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: Any
    ) -> Listener:
        """Listen without a network."""
        return self.wires.listen(host, port, protocol_factory)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: Any
    ) -> tuple[End, asyncio.BaseProtocol]:
        """Connect without a network."""
        return await self.wires.connect(host, port, protocol_factory)
