"""One server of a pair over all of its lives: it is started again when it has ended, as a supervisor would do."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RESTART_S: Final = 0.3
"""Between the end of a server and the next start."""
FENCED: Final = ("taken it over", "has taken over")
"""What a server says whose history another one has."""
STANDS_BY: Final = b" standing by "
"""What a server says that waits for another one to end."""


@dataclass(frozen=True, slots=True)
class End:
    """How one life ended, and what was said last."""

    code: int
    said: str


class Member:
    """A server process with its folder and address. Its methods may be called from several threads.

    Args:
        address: host and port, which no other process uses.
        url: of the store.
        settings: environment variables.

    Attributes:
        ends: of its lives, in their order.
        counted: how they ended.
        failures: what must not be: ends that nobody caused.
        serves_since_s: when the life that is now said that it serves; None before that.
    """

    def __init__(self, name: str, folder: Path, *, address: str, url: str, settings: Mapping[str, str]) -> None:
        self.name = name
        self.address = address
        self.ends: list[End] = []
        self.counted: Counter[str] = Counter()
        self.failures: list[str] = []
        self.serves_since_s: float | None = None
        self._folder = folder
        self._url = url
        self._settings = dict(settings)
        self._errors = folder.with_suffix(".log")
        self._said_before = 0
        # Guards the process, its wanted end, and whether there may be a next one.
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._code_wanted: int | None = None
        self._may_start = threading.Event()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"server {self.name}"

    @property
    def pid(self) -> int | None:
        """Process id; None between two lives."""
        with self._lock:
            return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Let it live, again and again."""
        if self._thread is None:
            self._is_over.clear()
            self._may_start.set()
            self._thread = threading.Thread(target=self._live, name=repr(self), daemon=True)
            self._thread.start()

    def end(self, number: signal.Signals) -> int:
        """End it with a signal, for good; return its exit code, 0 if it did not live."""
        if self._thread is None:
            return 0
        before = len(self.ends)
        self._is_over.set()
        self._may_start.set()
        self.signal(number)
        if number is not signal.SIGKILL:
            self._thread.join(60.0)
            self.signal(signal.SIGKILL)
        self._thread.join()
        self._thread = None
        return self.ends[-1].code if len(self.ends) > before else 0

    def hold(self) -> None:
        """Start it no more, until it is `released`."""
        self._may_start.clear()

    def release(self) -> None:
        """Start it again, if it does not live."""
        self._may_start.set()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it lives. One that ends it is an end that is wanted."""
        with self._lock:
            if self._process is None:
                return
            if number is signal.SIGKILL:
                self._code_wanted = -signal.SIGKILL
            elif number is signal.SIGTERM:
                self._code_wanted = 0
            self._process.send_signal(number)

    def stands_by(self) -> bool:
        """Return whether the life that is now waits for the other server to end, or serves."""
        with self._lock:
            if self._process is None:
                return False
            return self.serves_since_s is not None or STANDS_BY in self._said()

    def is_stopped(self) -> bool:
        """Return whether all of its threads stand still."""
        states = [
            path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{self.pid}/task").glob("*/stat")
        ]
        return bool(states) and set(states) == {"T"}

    def _live(self) -> None:
        while not self._is_over.is_set():
            self._live_once()
            self._is_over.wait(RESTART_S)
            self._may_start.wait()

    def _live_once(self) -> None:
        command = [
            sys.executable, "-m", "millrace.server", str(self._folder), "--listen", self.address,
            "--store", self._url, "--log", "object", "--standby", "--log-level", "INFO",
        ]  # fmt: skip
        with self._errors.open("ab") as errors:
            with self._lock:
                if self._is_over.is_set():
                    return
                self._code_wanted = None
                self._said_before = errors.tell()
                self._process = process = subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | self._settings
                )
        assert process.stdout is not None
        with process.stdout:
            if process.stdout.readline():
                self.serves_since_s = time.monotonic()
            code = process.wait()
        with self._lock:
            self._process, self.serves_since_s = None, None
        self._note_end(code, self._said().decode(errors="replace").strip())

    def _said(self) -> bytes:
        """Return what the newest life has said in its log."""
        with self._errors.open("rb") as file:
            file.seek(self._said_before)
            return file.read()

    def _note_end(self, code: int, said: str) -> None:
        last = said.rpartition("\n")[2]
        if code == self._code_wanted:
            self.counted["killed" if code else "stopped"] += 1
        elif code == -signal.SIGTERM and self._code_wanted == 0:
            self.counted["stopped while starting"] += 1  # nothing is given back then, as after a kill
        elif code == 1 and last.startswith("error: "):
            # Between a signal and the end that it causes, a server may learn that it was fenced.
            self.counted["fenced" if any(each in last for each in FENCED) else "ended with an error"] += 1
        else:
            self.failures.append(f"{self} ended with {code}, wanted was {self._code_wanted}: {said[-3000:]}")
        if "Traceback" in said:
            self.failures.append(f"{self}: {said[-3000:]}")
        self.ends.append(End(code, last))
