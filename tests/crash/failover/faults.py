"""What fails between two servers and their store, one thing after the other."""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tests.crash.failover.member import Member
from tests.crash.failover.networks import Lost
from tests.crash.failover.pair import Pair, ended, stand_still
from tests.crash.failover.probe import Probe
from tests.crash.failover.witness import Witness
from tests.support.cut_connections import Relay
from tests.support.waiting import until

FAILOVER_S_MAX: Final = 30.0
"""From the kill of the owner to the first ack. The aim is 5 s where nothing else runs; tests run beside a lot."""
ACK_S_MAX: Final = 90.0
"""After any other fault."""
STANDS_BY_S_MAX: Final = 120.0
STOPPED_S_MAX: Final = 60.0
COLLECTED_S_MAX: Final = 60.0
ZOMBIE_ENDS_S_MAX: Final = 60.0


class Fault(Enum):
    """What may fail."""

    OWNER_LOST = "the owner was killed, and stayed away until the other one served"
    OWNER_KILLED = "the owner was killed, and started again at once"
    OWNER_STOPPED = "the owner was stopped in good order"
    OWNER_FROZEN = "the owner stood still until what it had logged was deleted"
    STANDBY_KILLED = "the standby was killed"
    STORE_RESTARTED = "the store was killed, and started again soon"
    STORE_AWAY = "the store was away for longer than a lease"
    REQUESTS_LOST = "the owner's requests were lost until the other one served"
    ANSWERS_LOST = "the answers to the owner were lost until the other one served"
    NETWORK_LOST = "the owner's network vanished, towards clients and store, until the other one served"
    SOME_LOST = "packets of the owner or the standby were lost for a moment"


NEED_NETWORK: Final = {Fault.REQUESTS_LOST, Fault.ANSWERS_LOST, Fault.NETWORK_LOST, Fault.SOME_LOST}


@dataclass
class Faults:
    """Carries out one fault at a time, each until a client gets acks again.

    Args:
        relays: the way of the clients to each server.

    Attributes:
        failovers_s: from the end of each owner to the first ack of the other server, by how the owner ended.
    """

    pair: Pair
    relays: dict[Member, Relay]
    probe: Probe
    dice: random.Random
    counted: Counter[str]
    failovers_s: dict[str, list[float]] = field(default_factory=dict)
    _deck: list[Fault] = field(default_factory=list)
    _witnesses_count: int = 0

    def draw(self) -> Fault:
        """Return what fails next: each one once, in any order, before any comes again."""
        if not self._deck:
            self._deck = [each for each in Fault if self.pair.network is not None or each not in NEED_NETWORK]
            self.dice.shuffle(self._deck)
        return self._deck.pop()

    async def carry_out(self, fault: Fault) -> None:
        """Let something fail, and wait until a client gets acks again.

        Raises:
            AssertionError: it gets none, or a server did what it must not do.
        """
        steps: dict[Fault, Callable[[], Awaitable[None]]] = {
            Fault.OWNER_LOST: self._lose_owner,
            Fault.OWNER_KILLED: self._kill_owner,
            Fault.OWNER_STOPPED: self._stop_owner,
            Fault.OWNER_FROZEN: self._freeze_owner,
            Fault.STANDBY_KILLED: self._kill_standby,
            Fault.STORE_RESTARTED: lambda: self._kill_store(self.dice.uniform(0.0, 1.0)),
            Fault.STORE_AWAY: lambda: self._kill_store(self.dice.uniform(3.0, 7.0)),
            Fault.REQUESTS_LOST: lambda: self._lose_packets(Lost.REQUESTS),
            Fault.ANSWERS_LOST: lambda: self._lose_packets(Lost.ANSWERS),
            Fault.NETWORK_LOST: self._lose_network,
            Fault.SOME_LOST: self._lose_some,
        }
        await steps[fault]()
        await self.probe.next_ack(time.monotonic(), within_s=ACK_S_MAX)
        self.pair.check()
        self.counted[fault.value] += 1

    async def _lose_owner(self) -> None:
        owner = await self._watched_owner()
        with held(owner):
            since_s = time.monotonic()
            dead_s = await self._kill(owner)
            await self._time_failover("kill -9", since_s, dead_s, within_s=FAILOVER_S_MAX)

    async def _kill_owner(self) -> None:
        since_s = await self._kill(await self.pair.owner())
        await self.probe.next_ack(since_s, within_s=FAILOVER_S_MAX)

    async def _stop_owner(self) -> None:
        owner = await self._watched_owner()
        with held(owner):
            life, self.probe.silence_s = len(owner.ends), 0.0
            owner.signal(signal.SIGTERM)
            await ended(owner, life, within_s=STOPPED_S_MAX)
            await self.probe.next_ack(time.monotonic(), within_s=FAILOVER_S_MAX)
        print(f"switch after SIGTERM: {self.probe.silence_s:.2f} s without an ack", flush=True)

    async def _freeze_owner(self) -> None:
        owner = await self._watched_owner()
        witness, life = await self._witness(owner), len(owner.ends)
        try:
            since_s = time.monotonic()
            await stand_still(owner)
            stopped_s = time.monotonic()
            await witness.send(is_late=True)
            await self._time_failover("SIGSTOP", since_s, stopped_s)
            await self._superseded(owner)
        finally:
            owner.signal(signal.SIGCONT)
        await self._zombie_ended(owner, life, witness)

    async def _lose_packets(self, what: Lost) -> None:
        await self._cut_off_from_store(await self.pair.owner(), what)

    async def _lose_network(self) -> None:
        """Lose all that the owner sends, to clients and store, without a reset; time the first ack."""
        owner = await self._watched_owner()
        relay = self.relays[owner]
        try:
            async with asyncio.TaskGroup() as tasks:
                relay.silence()
                since_s = time.monotonic()
                tasks.create_task(self._time_failover("network loss", since_s, since_s), name="time a failover")
                await self._cut_off_from_store(owner, Lost.REQUESTS)
        finally:
            relay.cut()

    async def _cut_off_from_store(self, owner: Member, what: Lost) -> None:
        """Lose packets between an owner and its store until the other server has superseded it."""
        assert self.pair.network is not None
        witness, life, index = await self._witness(owner), len(owner.ends), self.pair.members.index(owner)
        self.pair.network.lose(index, what)
        try:
            await witness.send()
            await self._superseded(owner)
            await witness.send(is_late=True)
        finally:
            self.pair.network.mend(index, what)
        await self._zombie_ended(owner, life, witness)

    async def _lose_some(self) -> None:
        assert self.pair.network is not None
        index, what = self.dice.randrange(2), self.dice.choice(list(Lost))
        self.pair.network.lose(index, what)
        try:
            await asyncio.sleep(self.dice.uniform(0.2, 2.5))
        finally:
            self.pair.network.mend(index, what)

    async def _kill_standby(self) -> None:
        standby = self.pair.other(await self.pair.owner())
        standby.signal(signal.SIGKILL)

    async def _kill_store(self, away_s: float) -> None:
        await asyncio.to_thread(self.pair.gateway.kill)
        await asyncio.sleep(away_s)
        await asyncio.to_thread(self.pair.gateway.start)

    async def _kill(self, member: Member) -> float:
        """Kill a server; return when it was dead."""
        life = len(member.ends)
        member.signal(signal.SIGKILL)
        await ended(member, life, within_s=STOPPED_S_MAX)
        return time.monotonic()

    async def _time_failover(self, end: str, since_s: float, ended_s: float, *, within_s: float = ACK_S_MAX) -> None:
        """Report the time to the first ack of an event that is written once an owner acknowledges no more.

        Args:
            end: how the owner ended.
            since_s: when its end began.
            ended_s: when it had ended.
        """
        took_s = ended_s - since_s + await self.probe.next_ack(ended_s, within_s=within_s)
        self.failovers_s.setdefault(end, []).append(took_s)
        print(f"failover after {end}: {took_s:.2f} s", flush=True)

    async def _watched_owner(self) -> Member:
        """Return the owner once the other server stands by: the time of a start is not that of a failover."""
        owner = await self.pair.owner()
        await until(self.pair.other(owner).stands_by, within_s=STANDS_BY_S_MAX)
        return await self.pair.owner()

    async def _witness(self, owner: Member) -> Witness:
        self._witnesses_count += 1
        return await Witness.of(owner, f"witness/of-{self._witnesses_count}")

    async def _superseded(self, owner: Member) -> None:
        """Wait until the other server serves, and has deleted all batches of the log that there are."""
        batches = self.pair.batches()
        await self.pair.owner(other_than=owner)
        try:
            await until(lambda: not batches & self.pair.batches(), within_s=COLLECTED_S_MAX)
        except TimeoutError:
            raise AssertionError(f"not deleted from the log: {batches & self.pair.batches()}") from None

    async def _zombie_ended(self, zombie: Member, life: int, witness: Witness) -> None:
        code = await ended(zombie, life, within_s=ZOMBIE_ENDS_S_MAX)
        assert code == 1, f"a zombie ended with {code}"
        self.counted["acks that zombies owe"] += await witness.check(await self.pair.owner(other_than=zombie))


@contextmanager
def held(member: Member) -> Iterator[None]:
    """Do not start a server again within the body."""
    member.hold()
    try:
        yield
    finally:
        member.release()
