"""Real servers in processes of their own, to be killed."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from tests.support.servers import ENVIRONMENT_OF_BUSY

START_TIMEOUT_S = 120.0


class ServerProcess:
    """A server process on a data folder."""

    def __init__(self, process: asyncio.subprocess.Process, address: str, errors: Path) -> None:
        self.process = process
        self.address = address
        self._errors = errors

    @classmethod
    async def start(
        cls,
        folder: Path,
        *,
        environment: dict[str, str] | None = None,
        log_level: str = "WARNING",
        module: str = "millrace.server",
        listen: str = "127.0.0.1:0",
    ) -> "ServerProcess":
        """Start a server and return when it serves.

        Args:
            listen: the address of an earlier one, for clients that come back.

        Raises:
            RuntimeError: it ended instead, with what it said.
        """
        errors = folder.with_name(folder.name + ".log")
        with errors.open("ab") as stream:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", module, str(folder), "--listen", listen,
                "--log-level", log_level,
                env={**os.environ, **(ENVIRONMENT_OF_BUSY if environment is None else environment)},
                stdout=asyncio.subprocess.PIPE, stderr=stream, start_new_session=True,
            )  # fmt: skip
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_S)
        except BaseException:
            process.kill()
            await process.communicate()
            raise
        if not line:
            code = await process.wait()
            raise RuntimeError(f"server ended with {code}: {errors.read_text()[-2000:]}")
        return cls(process, json.loads(line)["address"], errors)

    @property
    def said(self) -> str:
        """What all servers of this folder said so far."""
        return self._errors.read_text()

    async def kill(self) -> None:
        """Kill it at this instant."""
        await self.end(signal.SIGKILL)

    async def end(self, number: signal.Signals) -> int:
        """Send a signal and return the exit code."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        # Reads its output to the end, too, which closes the pipe.
        await asyncio.wait_for(self.process.communicate(), START_TIMEOUT_S)
        assert self.process.returncode is not None
        return self.process.returncode


def kill(pid: int) -> None:
    """Kill a child, which may end by itself at this moment."""
    signal_child(pid, signal.SIGKILL)


def signal_child(pid: int, number: signal.Signals) -> None:
    """Send a signal to a child, which may end by itself at this moment.

    `Process.send_signal` would look first whether it has ended, and so take its exit code from asyncio, which then
    reports 255.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
