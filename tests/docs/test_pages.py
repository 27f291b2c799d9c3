"""The pages of the site for users: their programs and shell sessions are run, each page from top to bottom."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.client.testing import SETTINGS_SMALL, server

DOCS = Path(__file__).resolve().parents[2] / "docs"
ADDRESS = "127.0.0.1:9240"
_BLOCK = re.compile(r"^```(python|python token|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MILLRACE = "from millrace.cli.main import main; raise SystemExit(main())"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "count"),
    [
        ("tutorial", 10),
        ("how-to/run-a-server", 1),
        ("how-to/write", 10),
        ("how-to/read", 11),
        ("how-to/keep-and-delete", 11),
        ("how-to/find-the-lag", 3),
        ("how-to/handle-errors", 1),
        ("how-to/test", 2),
        ("kafka", 5),
        ("pravega", 4),
    ],
)
def test_what_a_page_shows_runs(page: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = _BLOCK.findall((DOCS / f"{page}.md").read_text(encoding="utf-8"))
    token = {"MILLRACE_FRONT_TOKEN": "let-me-in"} if "python token" in dict(blocks) else {}
    names: dict[str, object] = {}
    monkeypatch.chdir(tmp_path)
    with server(settings={**SETTINGS_SMALL, **token}) as running:
        for language, code in blocks:
            if language == "bash":
                run_session(code, running.address)
            else:
                exec(compile(code.replace(ADDRESS, running.address), page, "exec"), names)

    assert len(blocks) == count


def run_session(code: str, address: str) -> None:
    """Run lines as a shell does, with the server's address after each command; the first error ends it."""
    command = f"""millrace() {{ '{sys.executable}' -c '{_MILLRACE}' "$@" --address {address}; }}\n"""
    finished = subprocess.run(["sh", "-e", "-c", command + code], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def test_each_page_of_the_how_to_pages_is_listed() -> None:
    index = (DOCS / "how-to" / "index.md").read_text(encoding="utf-8")

    pages = {path.name for path in (DOCS / "how-to").glob("*.md")} - {"index.md"}
    assert {name for name in pages if f"]({name})" in index} == pages
