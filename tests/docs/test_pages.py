"""The pages of the site for users: their programs and shell sessions are run, each page from top to bottom."""

import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from millrace.client.testing import SETTINGS_SMALL, TestServer, server

DOCS = Path(__file__).resolve().parents[2] / "docs"
ADDRESS = "127.0.0.1:9240"
PAGES = {
    "tutorial": 10,
    "how-to/write": 10,
    "how-to/read": 11,
    "how-to/keep-and-delete": 11,
    "how-to/find-the-lag": 3,
    "how-to/handle-errors": 1,
    "how-to/test": 2,
    "data-tools": 8,
    "transactions": 7,
    "kafka": 5,
    "pravega": 4,
    "streams": 36,
    "errors": 1,
    "observability": 1,
}
"""The pages, with the numbers of their blocks."""
_BLOCK = re.compile(r"^```(python|python token|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MILLRACE = "from millrace.cli.main import main; raise SystemExit(main())"


@pytest.fixture(scope="module")
def shared() -> Iterator[TestServer]:
    """One server for all pages, as for a reader who goes through them."""
    with server() as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize(("page", "count"), PAGES.items())
def test_what_a_page_shows_runs(
    page: str, count: int, shared: TestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert run_page(page, shared) == count


@pytest.mark.slow
def test_the_page_about_a_server_with_a_token_runs() -> None:
    with server(settings={**SETTINGS_SMALL, "MILLRACE_FRONT_TOKEN": "let-me-in"}) as running:
        assert run_page("how-to/run-a-server", running) == 1


def test_each_page_has_streams_of_its_own() -> None:
    """A reader goes through the README and the pages on one server."""
    scopes = {page: scopes_of(page) for page in ("../README", "command-line", "spark", "how-to/spark", *PAGES)}

    assert sum(map(bool, scopes.values())) >= 10
    shared = {(one, other): scopes[one] & scopes[other] for one, other in combinations(scopes, 2)}
    assert {pair: both for pair, both in shared.items() if both} == {}


def scopes_of(page: str) -> set[str]:
    """Return the scopes in which a page makes streams."""
    code = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return set(re.findall(r"""(?:stream create |create_stream\("|millrace write )(\w+)/""", code))


def run_page(page: str, running: TestServer) -> int:
    """Run the blocks of a page from top to bottom; return their number."""
    blocks = _BLOCK.findall((DOCS / f"{page}.md").read_text(encoding="utf-8"))
    names: dict[str, object] = {}
    for language, code in blocks:
        if language == "bash":
            run_session(code, running.address)
        else:
            exec(compile(code.replace(ADDRESS, running.address), page, "exec"), names)
    return len(blocks)


def run_session(code: str, address: str) -> None:
    """Run lines as a shell does, with the server's address after each command; the first error ends it."""
    command = f"""millrace() {{ '{sys.executable}' -c '{_MILLRACE}' "$@" --address {address}; }}\n"""
    finished = subprocess.run(["sh", "-e", "-c", command + code], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def test_each_page_of_the_how_to_pages_is_listed() -> None:
    index = (DOCS / "how-to" / "index.md").read_text(encoding="utf-8")

    pages = {path.name for path in (DOCS / "how-to").glob("*.md")} - {"index.md"}
    assert {name for name in pages if f"]({name})" in index} == pages
