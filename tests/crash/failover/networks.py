"""A network of its own for a test: the store is in it, with a way to each server that can lose packets.

The program enters a namespace in which there is nothing but a loopback (`enter_own_network`), so that nobody else sees
its addresses. There it makes one more namespace, for the store, with a pair of interfaces for each server. Packets are
lost by a wrong hardware address of the other end: they are sent, and nobody takes them. So nothing tells the sender.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from enum import Enum
from functools import cache
from typing import Final

OWN_NETWORK: Final = "TORTURE_HAS_OWN_NETWORK"
"""The environment variable that a program finds in a network of its own."""
PROGRAMS: Final = ("ip", "unshare", "nsenter")
PROBE: Final = "ip link set lo up && ip link add probe0 type veth peer name probe1"
NOBODY: Final = "02:00:00:00:00:99"
"""A hardware address that no interface has."""


class Lost(Enum):
    """Which packets are lost."""

    REQUESTS = "requests"
    ANSWERS = "answers"


@cache
def why_no_network() -> str:
    """Return why a network of its own cannot be had here; empty if it can."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"packets cannot be dropped: not installed: {', '.join(missing)}"
    probe = subprocess.run(["unshare", "--net", "sh", "-c", PROBE], capture_output=True, text=True, check=False)
    return f"packets cannot be dropped: no namespaces: {probe.stderr.strip()}" if probe.returncode else ""


def has_own_network() -> bool:
    """Return whether this program is in a network of its own."""
    return OWN_NETWORK in os.environ


def enter_own_network(module: str) -> None:
    """Begin the program again in a network of its own, if that can be had; else say why not, and return."""
    if has_own_network():
        return
    if reason := why_no_network():
        print(f"notice: {reason}", flush=True)
        return
    again = f'ip link set lo up && exec "{sys.executable}" -m {module} "$@"'
    command = ["unshare", "--net", "sh", "-c", again, module, *sys.argv[1:]]
    os.execvpe(command[0], command, os.environ | {OWN_NETWORK: "1"})


class StoreNetwork:
    """The network of a store, in a network of its own, with a way to it for each server, as long as the process lives.

    Args:
        count: of the servers.

    Attributes:
        hosts: the addresses of the store, one for each server.
    """

    def __init__(self, count: int) -> None:
        assert has_own_network(), "nobody else may see these addresses"
        self.hosts = [self.host(index) for index in range(count)]
        # The namespace lives as long as a process is in it. This one ends with ours, however that ends.
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo $$; exec cat > /dev/null"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        self._pid = self._holder.stdout.readline().strip()
        self._in_store("ip", "link", "set", "lo", "up")
        for index in range(count):
            self._make_way(index)

    @property
    def command(self) -> Sequence[str]:
        """What starts a program in the network of the store."""
        return "nsenter", f"--net=/proc/{self._pid}/ns/net", "--"

    def host(self, index: int) -> str:
        """Return the address of the store on the way of a server."""
        return f"10.99.{index}.2"

    def lose(self, index: int, what: Lost) -> None:
        """Lose all packets of a kind on the way of a server, from now on."""
        self._neighbour(index, what, "replace", "lladdr", NOBODY, "nud", "permanent")

    def mend(self, index: int, what: Lost) -> None:
        """Lose them no more."""
        self._neighbour(index, what, "del")

    def _make_way(self, index: int) -> None:
        here, there = f"way{index}", f"store{index}"
        _run("ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", self._pid)
        _run("ip", "addr", "add", f"10.99.{index}.1/30", "dev", here)
        _run("ip", "link", "set", here, "up")
        self._in_store("ip", "addr", "add", f"{self.host(index)}/30", "dev", there)
        self._in_store("ip", "link", "set", there, "up")

    def _neighbour(self, index: int, what: Lost, verb: str, *words: str) -> None:
        if what is Lost.REQUESTS:
            _run("ip", "neigh", verb, self.host(index), *words, "dev", f"way{index}")
        else:
            self._in_store("ip", "neigh", verb, f"10.99.{index}.1", *words, "dev", f"store{index}")

    def _in_store(self, *command: str) -> None:
        _run(*self.command, *command)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
