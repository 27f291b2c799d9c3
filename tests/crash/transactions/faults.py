"""What fails between one server and its clients, one thing after the other, in an order that the seed draws."""

import asyncio
import itertools
import random
import signal
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

import millrace
from millrace.client.client import Client
from millrace.client.testing import TestServer
from tests.crash.processes import signal_child
from tests.crash.transactions.lanes import LEASES_S, STREAMS
from tests.crash.transactions.process import ClientProcess
from tests.support.cut_connections import Relay

SHORT_S: Final = (0.05, 0.8 * min(LEASES_S))
LONG_S: Final = (1.1 * min(LEASES_S), 1.5 * sorted(set(LEASES_S))[1])
"""How long a process stands still: shorter than every lease, or longer than some or all short ones."""
CUT_AFTER_BYTES_MAX: Final = 16 * 1024
CUT_WITHIN_S: Final = 0.2
"""Connections without so much traffic are cut after this time."""
SCALES_IN_A_ROW: Final = 3
SEGMENTS_OPEN_MAX: Final = 8


class Fault(Enum):
    """What may fail, by its name."""

    KILL = "server killed"
    STOP = "server stopped"
    STILL = "server stood still"
    STILL_LONG = "server stood still beyond leases"
    CLIENTS_STILL = "clients stood still"
    CLIENTS_STILL_LONG = "clients stood still beyond leases"
    CUT_REQUESTS = "connections cut within a request"
    CUT_REPLIES = "connections cut within a reply"
    SCALES = "all streams split and merged at once"
    SCALES_STILL = "all streams scaled while the server stood still"


DECK: Final = (*Fault, Fault.KILL, Fault.KILL)
"""In each turn every fault happens once, and the server is killed three times."""


def schedule(dice: random.Random) -> Iterator[Fault]:
    """Yield faults, each turn of them in an order of its own."""
    while True:
        yield from dice.sample(DECK, len(DECK))


@dataclass
class Faults:
    """Carries out one fault after the other.

    Attributes:
        relay: between the clients and the server.
        clients: the processes that may stand still.
        scaling: a client for scaling streams.
    """

    server: TestServer
    relay: Relay
    clients: Sequence[ClientProcess]
    scaling: Client
    dice: random.Random
    counted: Counter[str]

    async def carry_out(self, fault: Fault) -> None:
        """Cause one fault, and return when it is over.

        Raises:
            AssertionError: the server had ended by itself.
        """
        assert self.server.running, "the server ended by itself; its log says why"
        steps: dict[Fault, Callable[[], Coroutine[Any, Any, None]]] = {
            Fault.KILL: self._kill,
            Fault.STOP: self._stop,
            Fault.STILL: lambda: self._stand_still(SHORT_S),
            Fault.STILL_LONG: lambda: self._stand_still(LONG_S),
            Fault.CLIENTS_STILL: lambda: self._let_clients_stand_still(SHORT_S),
            Fault.CLIENTS_STILL_LONG: lambda: self._let_clients_stand_still(LONG_S),
            Fault.CUT_REQUESTS: lambda: self._cut(to_server=True),
            Fault.CUT_REPLIES: lambda: self._cut(to_server=False),
            Fault.SCALES: self._scale_all,
            Fault.SCALES_STILL: self._scale_all_still,
        }
        await steps[fault]()
        self.counted[fault.value] += 1

    async def _kill(self) -> None:
        await asyncio.to_thread(self.server.kill)
        await asyncio.to_thread(self.server.start)

    async def _stop(self) -> None:
        assert await asyncio.to_thread(self.server.stop) == 0
        await asyncio.to_thread(self.server.start)

    async def _stand_still(self, length_s: tuple[float, float]) -> None:
        pid = self.server.pid
        signal_child(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(self.dice.uniform(*length_s))
        finally:
            signal_child(pid, signal.SIGCONT)

    async def _let_clients_stand_still(self, length_s: tuple[float, float]) -> None:
        chosen = self.dice.sample(self.clients, self.dice.randint(1, len(self.clients)))
        await asyncio.gather(*(client.stand_still(self.dice.uniform(*length_s)) for client in chosen))

    async def _cut(self, *, to_server: bool) -> None:
        cuts_count = self.relay.cuts_count
        self.relay.cut_after(self.dice.randint(1, CUT_AFTER_BYTES_MAX), to_server=to_server)
        await asyncio.sleep(CUT_WITHIN_S)
        if self.relay.cuts_count == cuts_count:
            self.relay.cut()

    async def _scale_all(self) -> None:
        """Split and merge all streams at the same time: commits wait for one scale and meet the next one."""
        scales = [scale_in_a_row(self.scaling, stream, self.dice.random(), self.counted) for stream in STREAMS]
        await asyncio.gather(*scales)

    async def _scale_all_still(self) -> None:
        """Scale all streams while the server stands still: it finds commits before and after each scale at once."""
        scales = [await drawn_scale(self.scaling, stream, self.dice) for stream in STREAMS]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._stand_still(SHORT_S))
            for scale in scales:
                tasks.create_task(carry_out_scale(self.scaling, scale, self.counted))


async def scale_in_a_row(client: Client, stream: str, seed: float, counted: Counter[str]) -> None:
    """Scale a stream some times without a pause."""
    dice = random.Random(seed)
    for _ in range(SCALES_IN_A_ROW):
        await scale_once(client, stream, dice, counted)


async def scale_once(client: Client, stream: str, dice: random.Random, counted: Counter[str]) -> None:
    """Scale a stream."""
    await carry_out_scale(client, await drawn_scale(client, stream, dice), counted)


class Scale(NamedTuple):
    """Segments of a stream that are to be replaced, and the ranges of those that replace them."""

    stream: str
    sealed: list[int]
    ranges: list[tuple[float, float]]


async def drawn_scale(client: Client, stream: str, dice: random.Random) -> Scale:
    """Return a split or merge of some segments, or their replacement by others with the same borders."""
    opened = (await client.stream_info(stream)).open_segments
    first = dice.randrange(len(opened))
    chosen = opened[first : first + dice.choice([1, 1, 2, 3, len(opened)])]
    low, high = chosen[0].key_range.low, chosen[-1].key_range.high
    count = 1 if len(opened) > SEGMENTS_OPEN_MAX else dice.choice([1, 1, 2, 3])
    borders = sorted({low, high, *(dice.randrange(low + 1, high) for _ in range(count - 1))})
    return Scale(stream, [segment.segment_id for segment in chosen], list(itertools.pairwise(borders)))


async def carry_out_scale(client: Client, scale: Scale, counted: Counter[str]) -> None:
    """Scale a stream, unless a commit has."""
    try:
        await client.scale_stream(scale.stream, seal=scale.sealed, ranges=scale.ranges)
        counted["scaled by hand"] += 1
    except millrace.InvalidArgumentError:
        counted["scaled by a commit first"] += 1
