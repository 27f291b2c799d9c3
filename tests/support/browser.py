"""A real browser without a window, where the machine has one: Chromium, driven over two pipes."""

import base64
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Final, Self

from .waiting import PATIENCE_S

CHROMIUM: Final = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


_STARTER: Final = """
import os, sys
command, answer, program = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.dup2(command, 3)
os.dup2(answer, 4)
os.execv(program, sys.argv[3:])
"""
"""A browser reads commands from descriptor 3, and writes answers to descriptor 4."""


class Browser:
    """Chromium with one page. A context manager; everything waits.

    Attributes:
        complaints: what the browser said of the page after `listen`: errors of scripts, and what it refused to do.
    """

    def __enter__(self) -> Self:
        assert CHROMIUM is not None
        self._folder = TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        command_out, command_in = os.pipe()
        answer_out, answer_in = os.pipe()
        options = (
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--remote-debugging-pipe", f"--user-data-dir={self._folder.name}", "about:blank",
        )  # fmt: skip
        with Path(self._folder.name, "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _STARTER, str(command_out), str(answer_in), CHROMIUM, *options],
                pass_fds=(command_out, answer_in),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        os.close(command_out)
        os.close(answer_in)
        self._commands = os.fdopen(command_in, "wb", buffering=0)
        self._answers = os.fdopen(answer_out, "rb")
        self._number = 0
        self._session = ""
        self._navigated = False
        self.complaints: list[str] = []
        targets = self._ask("Target.getTargets")["targetInfos"]
        (page,) = (each["targetId"] for each in targets if each["type"] == "page")
        self._session = self._ask("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._commands.close()
        self._answers.close()
        self._folder.cleanup()

    def open(self, url: str) -> None:
        """Go to a page."""
        self._ask("Page.navigate", url=url)

    def reload(self) -> None:
        """Load the page once more; return when what is asked of it is answered by the new one."""
        self._ask("Page.enable")
        self._navigated = False
        self._ask("Page.reload")
        while not self._navigated:
            self._heed(json.loads(self._answer()))

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript in the page."""
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Return the value of an expression when it is true in the sense of Python."""
        give_up_s = time.monotonic() + PATIENCE_S
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < give_up_s, expression
            time.sleep(0.01)
        return value

    def listen(self) -> None:
        """Take down what the browser complains of from now on."""
        self._ask("Log.enable")
        self._ask("Runtime.enable")

    def look_like(self, scheme: str, *, width: int, height: int) -> None:
        """Have the page `light` or `dark`, and so many pixels of its own large."""
        self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def screenshot(self, path: Path) -> None:
        """Write the page as it is seen to a file, as PNG."""
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot")["data"]))

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        self._commands.write(json.dumps(command).encode() + b"\0")
        while (answer := json.loads(self._answer())).get("id") != self._number:
            self._heed(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _heed(self, event: dict[str, Any]) -> None:
        told = event.get("params", {})
        if event.get("method") == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        elif event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"])[:2000])
        elif event.get("method") == "Page.frameNavigated":
            self._navigated = True

    def _answer(self) -> bytes:
        parts = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser has ended"
            parts += byte
        return bytes(parts)


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing of requests."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the files of a folder to browsers; give their origin.

    What is not served from this machine may not reach it: browsers ask people first.
    """
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(folder))) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}"
        finally:
            listening.shutdown()
            thread.join()
