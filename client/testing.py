"""A real server in a child process, for tests.

    with millrace.testing.server() as server:
        server.address              # 127.0.0.1:<a free port>
        server.kill()               # as a power cut of the process would: SIGKILL
        server.start()              # the same folder, the same address

With pytest the fixture `millrace_server` gives one to each test. The server's log goes to standard error.
"""

import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from millrace.model.errors import MissingExtraError
from millrace.model.extras import DISTRIBUTION
from millrace.model.shown import PublicNames

SERVER_PACKAGE: Final = "aiofiles"
"""One of the packages that only the server needs: where it is not, no server can start."""
START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 20.0

# `python -m millrace.server`, but that no garbage is looked for while modules are loaded, nor later in what was loaded:
# nearly all of it is kept. Each look at it would take a twentieth of the time to start, and there would be several.
PROGRAM: Final = """
import gc, sys
gc.disable()
from millrace.server.__main__ import main
gc.freeze()
gc.enable()
sys.exit(main())
"""

# A test writes little, so log files are not filled with zeros: they take disk as they are written. Each holds the
# largest append.
SETTINGS_SMALL: Final = {
    "MILLRACE_WAL_FILE_SIZE_BYTES": str(20 << 20),
    "MILLRACE_WAL_HEADROOM_BYTES": str(1 << 20),
    "MILLRACE_WAL_ZERO_FILL": "false",
}


class TestServer(PublicNames):
    """A server process with its folder.

    What starts and ends it blocks, and may be called from several threads: one after the other is carried out.

    Args:
        listen: host and port of the data port; port 0 for a free one, which stays the same after a restart.
        console: the same for the console; empty for none.
    """

    __test__ = False  # pytest collects no class of ours

    def __init__(
        self,
        folder: Path,
        *,
        settings: Mapping[str, str] = SETTINGS_SMALL,
        log_level: str = "WARNING",
        listen: str = "127.0.0.1:0",
        console: str = "",
    ) -> None:
        self.folder = folder
        self._listen = listen
        self._console = console
        self._settings = dict(settings)
        self._log_level = log_level
        # A test that is cancelled leaves a start or a kill in a thread, and stops the server at its end.
        self._lock = threading.RLock()
        self._process: subprocess.Popen[str] | None = None
        self._address = ""
        self._console_address = ""

    def __repr__(self) -> str:
        """Return where it is, and whether it runs."""
        state = "running" if self._process is not None else "stopped"
        return f"<millrace.testing.TestServer at {self._address or self._listen}, {state}>"

    @property
    def address(self) -> str:
        """Host and port of the data port; the same after a restart."""
        if not self._address:
            raise RuntimeError("the server was never started")
        return self._address

    @property
    def console_address(self) -> str:
        """Host and port of the console; the same after a restart; empty where there is none."""
        return self._console_address

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server, and return once it accepts connections.

        Raises:
            MissingExtraError: the packages of the server are not installed.
            RuntimeError: it ended, or did not serve within two minutes.
        """
        with self._lock:
            if self.running:
                raise RuntimeError("the server is running")
            if find_spec(SERVER_PACKAGE) is None:
                raise MissingExtraError(SERVER_PACKAGE, f"{DISTRIBUTION}[server]")
            self._process = self._popen()
            line = self._first_line()
            if not line:
                self.kill()
                raise RuntimeError("the server ended before it served; its log says why")
            told = json.loads(line)
            self._address, self._console_address = told["address"], told["console"]

    def stop(self) -> int:
        """Stop the server as an operator would (SIGTERM), and return its exit code."""
        with self._lock:
            if self._process is None:
                return 0
            self._process.terminate()
            try:
                return self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                return self._process.wait()
            finally:
                self._forget()

    def kill(self) -> None:
        """End the server without any warning (SIGKILL)."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
                self._forget()

    def restart(self) -> None:
        """Stop and start on the same folder and address."""
        with self._lock:
            self.stop()
            self.start()

    def _popen(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [
                sys.executable, "-c", PROGRAM, str(self.folder),
                "--listen", self._address or self._listen, "--console", self._console_address or self._console,
                "--log-level", self._log_level,
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **self._settings},
        )  # fmt: skip

    def _forget(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def _first_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            return self._process.stdout.readline() if selector.select(START_TIMEOUT_S) else ""


@contextmanager
def server(
    folder: Path | None = None,
    *,
    settings: Mapping[str, str] = SETTINGS_SMALL,
    log_level: str = "WARNING",
    console: str = "",
) -> Iterator[TestServer]:
    """Run a real server for the length of a `with` block.

    Args:
        folder: its data; a temporary one, removed at the end, if it is left out.
        settings: environment variables of the server; `millrace settings` lists them.
        console: host and port of a console; port 0 for a free one, empty for none.
    """
    with ExitStack() as stack:
        if folder is None:
            made = tempfile.TemporaryDirectory(prefix="millrace-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(made))
        running = TestServer(folder, settings=settings, log_level=log_level, console=console)
        try:
            running.start()
            yield running
        finally:
            running.stop()
