"""Two servers over one bucket of a real S3 server; one of them serves."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from tests.crash.failover.member import Member
from tests.crash.failover.networks import StoreNetwork
from tests.crash.torture import listen_of_this_process
from tests.support.s3 import NO_VERSITYGW, Bucket, Versitygw, find_versitygw
from tests.support.waiting import until

SETTINGS: Final = {
    "MILLRACE_WAL_RUN_SIZE_BYTES_MAX": str(64 << 10),
    "MILLRACE_CONTAINER_FLUSH_SIZE_BYTES": str(8 << 10),
    "MILLRACE_CONTAINER_FLUSH_AGE_S": "0.05",
    "MILLRACE_CONTAINER_CHECKPOINT_INTERVAL_S": "0.1",
    "MILLRACE_CONTAINER_COPY_INTERVAL_S": "0.1",
    "MILLRACE_OBJECTS_ATTEMPT_S": "2",
    "MILLRACE_OBJECTS_PATIENCE_S": "4",
    "MILLRACE_OBJECTS_RESERVE_BYTES": str(1 << 20),
}
"""Chunks, checkpoints and copies all the time: what is in the log is deleted soon after it was written."""

MILLRACE: Final = (sys.executable, "-c", "import sys; from millrace.cli.main import main; sys.exit(main())")
BUCKET: Final = "torture"
STORE: Final = "store"
FENCE_SIZE_BYTES: Final = 64
"""Of an object that ends an epoch of the log, and is never deleted."""
SERVES_S_MAX: Final = 120.0


class Pair:
    """Two servers, each with a folder and an address of its own, and the store that they share.

    Args:
        folder: of all of them; it need not be there.
        network: where the store is; None: on this loopback.
    """

    def __init__(self, folder: Path, *, network: StoreNetwork | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.network = network
        self.gateway = gateway_of(folder, network=network)
        (folder / STORE / BUCKET).mkdir(exist_ok=True)
        self._objects = folder / STORE / BUCKET / Bucket(BUCKET, "").url.rpartition("/")[2]
        host = listen_of_this_process().rpartition(":")[0]
        self.members = [
            Member(
                name,
                folder / name,
                address=f"{host}:{free_port(host)}",
                url=Bucket(BUCKET, endpoint).url,
                settings=SETTINGS | Bucket(BUCKET, endpoint).environment,
            )
            for name, endpoint in zip("ab", self.gateway.endpoints * (1 if network else 2), strict=True)
        ]

    @property
    def address(self) -> str:
        """Both addresses, as clients take them."""
        return ",".join(member.address for member in self.members)

    @property
    def counted(self) -> Counter[str]:
        """How servers ended."""
        return sum(
            (Counter({f"servers {how}": n for how, n in each.counted.items()}) for each in self.members), Counter()
        )

    def start(self) -> None:
        """Start the store and both servers, and return when one of them serves."""
        self.gateway.start()
        for member in self.members:
            member.start()
        deadline_s = time.monotonic() + SERVES_S_MAX
        while not self._serving(self.members):
            assert time.monotonic() < deadline_s, "no server serves"
            time.sleep(0.01)

    def kill(self) -> None:
        """End both servers without any warning, and the store."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End both servers in good order, then the store; return the highest exit code."""
        return self._end(signal.SIGTERM)

    async def owner(self, *, other_than: Member | None = None) -> Member:
        """Return the server that has said last that it serves; wait until there is one."""
        members = [member for member in self.members if member is not other_than]
        await until(lambda: self._serving(members), within_s=SERVES_S_MAX)
        return self._serving(members) or await self.owner(other_than=other_than)

    def other(self, member: Member) -> Member:
        """Return the server beside one."""
        return self.members[1 - self.members.index(member)]

    def check(self) -> None:
        """Assert that no server ended in a way that nobody caused."""
        failures = [failure for member in self.members for failure in member.failures]
        assert not failures, "\n".join(failures)

    def objects(self, under: str = "") -> set[str]:
        """Return the keys of all objects, or of those under a key of the container."""
        found = (self._objects / under).rglob("*")
        return {str(path.relative_to(self._objects)) for path in found if path.is_file()}

    def batches(self) -> set[str]:
        """Return the keys of all objects of the log but fences."""
        found = set()
        for key in self.objects("c0000/log"):
            path = self._objects / key
            try:
                if path.stat().st_size != FENCE_SIZE_BYTES:
                    found.add(key)
            except FileNotFoundError:
                pass  # deleted since the listing
        return found

    @staticmethod
    def _serving(members: Sequence[Member]) -> Member | None:
        """Return which of these has said last that it serves."""
        serving = [(since_s, each) for each in members if (since_s := each.serves_since_s) is not None]
        return max(serving, key=lambda found: found[0])[1] if serving else None

    def _end(self, number: signal.Signals) -> int:
        code = max(member.end(number) for member in self.members)
        self.gateway.kill()
        return code


def gateway_of(folder: Path, *, network: StoreNetwork | None = None) -> Versitygw:
    """Return the store of a pair, not started."""
    program = find_versitygw()
    assert program is not None, NO_VERSITYGW
    if network is None:
        return Versitygw(program, folder / STORE)
    return Versitygw(program, folder / STORE, hosts=network.hosts, command=network.command)


def damage_in_store(folder: Path) -> Sequence[object]:
    """Return what `millrace verify` finds in the store of a pair that has ended."""
    gateway = gateway_of(folder)
    gateway.start()
    bucket = Bucket(BUCKET, gateway.endpoint)
    try:
        verified = subprocess.run(
            [*MILLRACE, "verify", "--store", bucket.url, "--json"],
            env=os.environ | bucket.environment, stdout=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    finally:
        gateway.kill()
    told = json.loads(verified.stdout)
    findings: list[object] = told["findings"]
    assert bool(findings) == bool(verified.returncode)
    return findings


def free_port(host: str) -> int:
    """Return a port that is free, at an address that no other process uses."""
    with closing(socket.create_server((host, 0))) as listener:
        port: int = listener.getsockname()[1]
        return port


async def ended(member: Member, life: int, *, within_s: float) -> int:
    """Wait until one life of a server has ended; return its exit code."""
    try:
        await until(lambda: len(member.ends) > life, within_s=within_s)
    except TimeoutError:
        raise AssertionError(f"{member} has not ended after {within_s:g} s") from None
    return member.ends[life].code


async def stand_still(member: Member) -> None:
    """Stop all threads of a server (SIGSTOP)."""
    await asyncio.to_thread(member.signal, signal.SIGSTOP)
    await until(member.is_stopped)
