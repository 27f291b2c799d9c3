"""What the documentation shows is run, and what it lists is complete."""

import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace import TAIL, blocking
from millrace.cli.main import main
from millrace.client.testing import SETTINGS_SMALL, TestServer, server
from millrace.server.console import api as console
from millrace.server.console.event_page import EVENTS_COUNT_MAX, PAGE_SIZE_BYTES_MAX, VALUE_SIZE_BYTES_MAX
from millrace.server.console.liveness import LIVE_S
from millrace.server.console.stream_facts import EPOCHS_COUNT_MAX, SEGMENTS_COUNT_MAX
from millrace.server.container.options import ContainerOptions
from millrace.server.kinds.transactions.limits import STREAMS_COUNT_MAX
from millrace.server.kinds.transactions.options import TransactionsOptions
from millrace.server.kinds.transactions.part_validation import PARTS_COUNT_MAX
from millrace.server.kinds.writers.options import WritersOptions
from millrace.server.settings import OTHERS, declared
from millrace.server.streams.options import StreamsOptions
from tests.support.browser import CHROMIUM, Browser, served
from tests.support.installed import build_wheel, make_environment, python_of
from tests.support.tables import table

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "docs/applications/README.md",
    "docs/applications/event-time.md",
    "docs/applications/fraud.md",
    "docs/applications/change-feed.md",
    "docs/applications/sensors.md",
    "docs/applications/new-version.md",
    "docs/applications/scaling-in-step.md",
    "docs/applications/search.md",
    "docs/applications/word-count.md",
    "docs/architecture.md",
    "docs/metrics.md",
    "docs/observability.md",
    "docs/data-tools.md",
    "docs/errors.md",
    "docs/console.md",
    "docs/command-line.md",
    "docs/operations.md",
    "docs/settings.md",
    "docs/streams.md",
    "docs/testing.md",
    "docs/transactions.md",
)
DEFAULT_ADDRESS = "127.0.0.1:9240"
DEFAULT_CONSOLE = "127.0.0.1:9241"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")


def blocks(page: str, language: str) -> list[str]:
    return [code for kind, code in _BLOCK.findall((ROOT / page).read_text()) if kind == language]


def program(part: str) -> str:
    """Return the one Python program of the README that holds some text."""
    (found,) = [code for code in blocks("README.md", "python") if part in code]
    return found


@pytest.fixture(scope="module")
def shop() -> Iterator[TestServer]:
    """A server on which the README's producer ran."""
    with server() as started:
        assert run_program(program("orders are on disk"), started) == "1000 orders are on disk\n"
        yield started


def command_of(code: str, running: TestServer) -> list[str]:
    # As a program of its own, warnings are shown and not errors: a reader would see them.
    return [sys.executable, "-W", "error::SyntaxWarning", "-c", code.replace(DEFAULT_ADDRESS, running.address)]


def run_program(code: str, running: TestServer) -> str:
    """Run a program as a reader would, but for the address, and return what it prints."""
    finished = subprocess.run(
        command_of(code, running),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_the_first_shell_session(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (session,) = blocks("README.md", "bash")
    source = tmp_path / "input"
    with server() as running, source.open("w+") as file:
        monkeypatch.setattr(sys, "stdin", file)
        for line in session.splitlines():
            text, _, command = line.rpartition(" | ")
            if text:
                source.write_text(shlex.split(text)[1] + "\n")
            assert main([*shlex.split(command)[1:], "--address", running.address]) == 0, line

    out = capsys.readouterr().out
    assert '{"customer": "ada", "amount": 3}' in out
    assert "4 open, after 0 scalings" in out


@pytest.mark.slow
def test_two_commands_after_the_installation_an_event_is_durable(tmp_path: Path) -> None:
    serve, store = (shlex.split(command.removeprefix("$ ")) for command in blocks("README.md", "console"))
    millrace = [sys.executable, "-c", "import sys; from millrace.cli.main import main; sys.exit(main())"]
    assert (serve[0], store[0]) == ("millrace", "python")
    served = subprocess.Popen(
        [*millrace, *serve[1:], "--listen", "127.0.0.1:0", "--console", "none"],
        stderr=subprocess.PIPE, text=True, cwd=tmp_path, env={**os.environ, **SETTINGS_SMALL},
    )  # fmt: skip
    with served:
        assert served.stderr is not None
        (line,) = itertools.islice((line for line in served.stderr if "serving address=" in line), 1)
        address = line.partition("address=")[2].split()[0]
        command = [sys.executable, *(part.replace(DEFAULT_ADDRESS, address) for part in store[1:])]
        stored = subprocess.run(command, capture_output=True, text=True, check=True)
        served.kill()

    assert stored.stdout.startswith("WriteResult(")
    with server(tmp_path / "millrace-data") as again, blocking.connect(again.address) as client:
        with client.reader("shop/first", end=TAIL) as reader:
            assert [event.value for event in reader] == [b"hello"]


@pytest.mark.slow
def test_the_tail_reader_shows_what_the_producer_wrote(shop: TestServer) -> None:
    tail = subprocess.Popen(
        command_of(program("async for event"), shop), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert tail.stdout is not None

    lines = [tail.stdout.readline() for _ in range(1000)]
    tail.send_signal(signal.SIGINT)
    tail.communicate()

    assert len(set(lines)) == 1000
    assert b'customer-3 {"amount": 3}\n' in lines


@pytest.mark.slow
def test_the_program_without_asyncio_counts_them(shop: TestServer) -> None:
    assert run_program(program("from millrace import HEAD"), shop) == "1000 events\n"


@pytest.mark.slow
def test_the_program_about_a_stream_that_grows(shop: TestServer) -> None:
    assert run_program(program("by_events_per_s"), shop) == "[2, 2]\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["segments.append", "testing.chaos"])
def test_the_programs_for_tests_of_others(shop: TestServer, name: str) -> None:
    run_program(program(name), shop)


def test_what_duckdb_prints_is_told_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    with server() as running:
        for code in blocks("docs/data-tools.md", "python")[:2]:
            exec(compile(code.replace(DEFAULT_ADDRESS, running.address), "docs/data-tools.md", "exec"), names)
        names["client"].close()

    (table,) = re.findall(r"^```\n(┌.*?)^```$", (ROOT / "docs/data-tools.md").read_text(), re.MULTILINE | re.DOTALL)
    assert capsys.readouterr().out.strip() == table.strip()


def test_the_bounds_of_transactions_are_told_as_they_are() -> None:
    text = (ROOT / "docs" / "transactions.md").read_text()
    options = TransactionsOptions()

    for row in (
        f"| streams of a transaction | {STREAMS_COUNT_MAX} |",
        f"| open transactions, in all | {options.open_count_max:,} |",
        f"| over one stream | {options.open_per_stream_count_max:,} |",
        f"| begun by one client | {options.open_per_session_count_max:,} |",
        f"| bytes of one | {ContainerOptions().transaction_size_bytes_max >> 30} GiB |",
        f"| parts of one | {PARTS_COUNT_MAX:,} |",
        f"| parts of all | {options.open_parts_count_max:,} |",
        f"| memory of all, with their parts | {options.open_size_bytes_max >> 20} MiB |",
        f"| lease | 1 s to {options.lease_s_max // 3600} h |",
    ):
        assert row in text
    assert (options.named_outcome_s, options.unnamed_outcome_s) == (7 * 86400, 3600)
    assert options.outcomes_count_max == 1_000_000


@table("page", PAGES)
def test_every_program_that_is_named_is_there(page: str) -> None:
    for name in re.findall(r"python (examples/\w+\.py)", (ROOT / page).read_text()):
        assert (ROOT / name).is_file(), name


@pytest.mark.slow
def test_the_shell_sessions_of_the_command_line_print_what_is_shown(tmp_path: Path) -> None:
    """Each block runs in a shell; the text after it is what it prints."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "millrace"
    text = (ROOT / "docs" / "command-line.md").read_text()
    sessions = re.findall(r"^```bash\n(.*?)^```\n(?:.*?^```text\n(.*?)^```)", text, re.MULTILINE | re.DOTALL)
    with server() as running:
        address = f"--address {running.address}"
        python = f"{sys.executable} -c 'import sys; from millrace.cli.main import main; sys.exit(main())'"
        program.write_text(f'#!/bin/sh\nexec {python} "$@" {address}\n')
        program.chmod(0o755)
        environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
        for session, printed in sessions:
            shell = ["bash", "-e", "-o", "pipefail", "-c", session]
            ran = subprocess.run(shell, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
            assert ran.returncode == 0, session + ran.stderr
            assert ran.stdout.replace(f" {address}", "") == printed

    assert len(sessions) == len(blocks("docs/command-line.md", "bash")) == 5


@pytest.fixture
def fresh_python(tmp_path: Path) -> Path:
    """The Python of an environment into which Millrace was installed; what it needs is found where the tests run."""
    packages = make_environment(tmp_path / "environment", build_wheel(tmp_path))
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return python_of(packages)


@pytest.mark.spark
@pytest.mark.slow
def test_the_spark_query_runs_in_a_fresh_shell_and_warns_of_nothing(
    shop: TestServer, fresh_python: Path, tmp_path: Path
) -> None:
    """No environment is activated, nothing is set, and the first `python3` of the path is a stranger."""
    file = tmp_path / "query.py"
    file.write_text(program("readStream").replace(DEFAULT_ADDRESS, shop.address))
    stranger = tmp_path / "bin" / "python3"
    stranger.parent.mkdir()
    stranger.write_text("#!/bin/sh\nexit 3\n")
    stranger.chmod(0o755)
    kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME", "LANG", "TMPDIR") if name in os.environ}
    # Only what is for development brings pandas.
    options = ["-W", "ignore:PySpark does not yet fully support pandas:FutureWarning"]

    finished = subprocess.run(
        [fresh_python, *options, file], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**kept, "PATH": f"{stranger.parent}:{os.environ['PATH']}"},
    )  # fmt: skip

    assert finished.returncode == 0, finished.stderr
    assert f"|customer-0|   143| {sum(range(0, 1000, 7))}|" in finished.stdout
    warned = [line for line in finished.stderr.splitlines() if re.search("warn", line, re.IGNORECASE)]
    # What Java, Spark and Hadoop say on every start, before a program could set anything.
    usual = "incubator modules|default log level|NativeCodeLoader"
    assert [line for line in warned if not re.search(usual, line)] == []


STATE = "sensors/state"


@pytest.fixture
def fed() -> Iterator[TestServer]:
    """A server whose feeds all pages may read, with the streams that the pages about feeds name."""
    with server(settings={**SETTINGS_SMALL, "MILLRACE_FEED_ORIGINS": "*"}, console="127.0.0.1:0") as running:
        with blocking.connect(running.address) as client:
            for stream, key in (("shop/orders", "ada"), ("mall/orders", "ada"), (STATE, "KSEA")):
                client.create_stream(stream)
                with client.writer(stream) as writer:
                    writer.write(b'{"amount": 3}', key=key)
        yield running


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("page", ["README.md", "docs/streams.md", "docs/applications/change-feed.md"])
def test_what_is_asked_of_a_feed_with_curl(fed: TestServer, page: str) -> None:
    commands = re.findall(r"curl -N '[^']*'", (ROOT / page).read_text())

    assert commands
    for command in commands:
        arguments = shlex.split(command.replace(DEFAULT_CONSOLE, fed.console_address))
        with subprocess.Popen([*arguments, "--silent"], stdout=subprocess.PIPE) as curl:
            assert curl.stdout is not None
            lines = iter(curl.stdout.readline, b"")
            assert b'\\"amount\\": 3' in next(line for line in lines if line.startswith(b"data: "))
            curl.kill()


def test_what_is_asked_of_the_console_is_answered(fed: TestServer) -> None:
    (url,) = re.findall(r"curl -s '([^']*)'", (ROOT / "docs/console.md").read_text())

    with urllib.request.urlopen(url.replace(DEFAULT_CONSOLE, fed.console_address), timeout=60) as answer:
        assert [each["value"] for each in json.load(answer)["events"]] == ['{"amount": 3}']


def test_the_json_of_the_console_and_its_bounds_are_told_as_they_are() -> None:
    page = (ROOT / "docs/console.md").read_text()
    listed = re.findall(r"^\| `/api/v1/([^`]*)` \|([^|]*)\|", page, re.MULTILINE)
    assert {path.replace("SCOPE/STREAM", "*/*"): re.findall(r"`(\w+)`", names) for path, names in listed} == {
        "server": [], **{path: list(names) for path, (names, _) in console.VIEWS.items()}
    }  # fmt: skip
    text = " ".join(page.split())
    for told in (
        f"`limit` (1 to {console.STREAMS_COUNT_MAX})",
        f"`limit` (1 to {EVENTS_COUNT_MAX})",
        f"`limit` (1 to {console.TRANSACTIONS_COUNT_MAX})",
        f"looks at {console.SCANNED_COUNT_MAX:,} names at most",
        f"at most {SEGMENTS_COUNT_MAX:,} segments, {EPOCHS_COUNT_MAX} scalings, {console.CUTS_COUNT_MAX} cursors",
        f"{PAGE_SIZE_BYTES_MAX >> 20} MiB of events",
        f"a value above {VALUE_SIZE_BYTES_MAX >> 10} KiB",
        f"{console.REQUESTS_COUNT_MAX} requests are answered at once",
        f"{console.EVENT_REQUESTS_COUNT_MAX} of them for events, each for {console.ANSWER_S:g} s at most",
        f"answers within {LIVE_S:g} s",
    ):
        assert told in text, told


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize(
    ("page", "language"), [("docs/streams.md", "js"), ("docs/applications/change-feed.md", "html")]
)
def test_a_page_that_follows_a_feed(fed: TestServer, page: str, language: str, tmp_path: Path) -> None:
    (code,) = blocks(page, language)
    if language == "js":
        shows = 'function show(event) { document.getElementById("state").textContent = event.value }'
        code = f'<pre id="state"></pre><script>{shows}\n{code}\nfollow()</script>'
    (tmp_path / "page.html").write_text(code.replace(DEFAULT_CONSOLE, fed.console_address))
    with served(tmp_path) as origin, Browser() as browser:
        browser.open(f"{origin}/page.html")
        assert '"amount": 3' in browser.wait_for("document.getElementById('state')?.textContent")


def test_every_program_of_the_readme_is_run_here() -> None:
    run = [
        "orders are on disk", "async for event", "from millrace import HEAD", "segments.append", "readStream",
        "by_events_per_s", "testing.chaos",
    ]  # fmt: skip

    assert len(blocks("README.md", "python")) == len({program(part) for part in run})


@table("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target, anchor in _LINK.findall((ROOT / page).read_text()):
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, anchor


def test_every_command_is_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    named = re.findall(r"^│ ([a-z]+) ", capsys.readouterr().out, re.MULTILINE)
    text = (ROOT / "README.md").read_text()

    assert len(named) == 17
    for command in named:
        assert f"`millrace {command}" in text


def test_the_patience_of_the_scaler_is_told_as_it_is() -> None:
    text = " ".join((ROOT / "docs" / "streams.md").read_text().split())
    options = StreamsOptions()

    assert f"A segment above {options.split_above:g} of its target for {options.split_after_s:g} s is split" in text
    assert options.merge_below == 0.5
    assert f"less than half of the target of one for {options.merge_after_s:g} s are merged" in text
    assert options.tick_s == 2
    assert "looks every two seconds" in text


def test_the_idle_times_of_writers_are_told_as_they_are() -> None:
    text = " ".join((ROOT / "docs" / "streams.md").read_text().split())
    options = WritersOptions()

    assert "after 30 days for one with an id, a day for one without" in text
    assert (options.named_idle_s, options.unnamed_idle_s) == (30 * 86400, 86400)
    assert f"for the {options.marks_count_max:,} ids that expired last" in text


def test_the_file_of_settings_that_is_shown_is_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (content,) = blocks("docs/operations.md", "toml")
    (command,) = blocks("docs/operations.md", "bash")
    (tmp_path / "millrace.toml").write_text(content)
    monkeypatch.chdir(tmp_path)

    assert main(shlex.split(command)[1:]) == 0

    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert re.search(r"128 MiB +64 MiB +file ", rows["wal.file_size_bytes"])
    assert re.search(r"30 d +7 d +file ", rows["transactions.named_outcome_s"])
    assert re.search(r"32 +16 +command line ", rows["wal.files_max"])


@table("page", [path.relative_to(ROOT) for path in (ROOT / "docs").glob("*.md")])
def test_every_setting_that_is_named_exists(page: Path) -> None:
    known = {setting.variable for setting in declared().values()} | OTHERS
    named = set(re.findall(r"\bMILLRACE_[A-Z0-9_]*[A-Z0-9]\b(?!_)", (ROOT / page).read_text()))

    assert {name for name in named - known if not any(each.startswith(name + "_") for each in known)} == set()
