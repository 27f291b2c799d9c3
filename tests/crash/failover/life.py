"""Some seconds of transactions on two servers that take over from one another, with the clients of a single one."""

import asyncio
import random
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import millrace
from millrace.client.client import Client
from tests.crash.failover.faults import Faults
from tests.crash.failover.pair import Pair
from tests.crash.failover.probe import Probe
from tests.crash.patience import PATIENT
from tests.crash.transactions import life
from tests.crash.transactions.lanes import STREAMS


@dataclass
class Life(life.Life):
    """A life on a pair, in which not only servers are killed.

    Attributes:
        failovers_s: from each kill of an owner to the first ack, if the other server took over.
    """

    server: Pair
    failovers_s: list[float] = field(default_factory=list)

    async def run(self) -> None:
        """Live it, and say how long failovers took."""
        await super().run()
        self.server.check()
        self.counted += self.server.counted
        if took_s := self.failovers_s:
            print(
                f"{len(took_s)} failovers after kill -9 until the first ack: median {statistics.median(took_s):.2f} s,"
                f" at most {max(took_s):.2f} s",
                flush=True,
            )

    @asynccontextmanager
    async def entrance(self) -> AsyncIterator[str]:
        """Yield the addresses of both servers."""
        yield self.server.address

    async def fail(self, client: Client) -> None:
        """Let one thing fail after the other until clients have had acks for as long as the life is to be."""
        # The probe has a client of its own, so that it does not wait for requests of others.
        dice = random.Random(self.dice.random())
        async with (
            millrace.connect(self.server.address, options=PATIENT) as own,
            asyncio.TaskGroup() as tasks,
        ):
            probe = Probe(own, self._recorder, STREAMS[0])
            tasks.create_task(probe.run(), name="probe")
            faults = Faults(self.server, probe, dice, self.counted, self.failovers_s)
            lived_s = 0.0
            while not self.is_over:
                living_s = dice.uniform(0.3, 4.0)
                await asyncio.sleep(living_s)
                lived_s += living_s if self.has_begun else 0.0
                fault = faults.draw()
                print(f"fault: {fault.value}", flush=True)
                self.story.append(fault.name)
                await faults.carry_out(fault)
                if lived_s >= self.seconds:
                    self.end()
            probe.end()
