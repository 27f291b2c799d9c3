"""What is installed with which extra, and what is said where something is missing."""

import json
import re
import signal
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace.client.testing import SETTINGS_SMALL, TestServer, server
from tests.support.installed import (
    MILLRACE,
    ROOT,
    build_wheel,
    link_packages,
    make_environment,
    python_of,
    requirements_of,
    run_python,
)

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Dockerfile"]
PROGRAMS = ("model", "wire", "server", "client", "spark_source", "cli", "examples", "applications", "benchmarks")
SOURCES = [path for part in PROGRAMS for path in (ROOT / part).rglob("*.py")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

CLIENT = """
import asyncio, sys
from importlib.util import find_spec
import millrace

address, stream = sys.argv[1:]

async def main():
    async with millrace.connect(address) as client:
        await client.create_stream(stream)
        async with client.writer(stream) as writer:
            await writer.write(b"by asyncio", key="a")

asyncio.run(main())
with millrace.blocking.connect(address) as client:
    with client.writer(stream) as writer:
        writer.write(b"by a thread", key="a").result()
    with client.reader(stream, end=millrace.TAIL) as reader:
        print([event.value.decode() for event in reader])
print(sorted(name for name in ("aiofiles", "pyarrow", "pydantic", "pyspark", "rich", "typer") if find_spec(name)))
print("uvloop" in sys.modules)
"""

Environment = Callable[..., Path]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Make an environment with the packages of some extras; the same one is made once."""
    made: dict[tuple[str, ...], Path] = {}

    def make(*extras: str, without: str = "") -> Path:
        if (*extras, without) not in made:
            packages = make_environment(tmp_path_factory.mktemp("environment") / "venv", wheel)
            link_packages(packages, [each for each in requirements_of(wheel, extras) if each.name != without])
            made[(*extras, without)] = packages
        return made[(*extras, without)]

    return make


@pytest.fixture(scope="module")
def served() -> Iterator[TestServer]:
    with server() as running:
        yield running


def test_the_name_of_the_distribution_is_ours() -> None:
    """`millrace` on the index is somebody else's."""
    assert PROJECT["name"] == "millrace-streams"
    assert list(PROJECT["scripts"]) == ["millrace"]


def test_nothing_tells_to_install_somebody_elses_package() -> None:
    wrong = re.compile(r"(?:pip install|uv add|pipx install)[^\n`]*['\" ]millrace(?![\w./-])|millrace\[[a-z]")

    assert all(wrong.search(text) for text in ("pip install millrace", "pip install 'millrace[spark]'"))
    assert not wrong.search("pip install 'millrace-streams[spark]'")
    found = [f"{path.relative_to(ROOT)}: {hit[0]}" for path in (*PAGES, *SOURCES, ROOT / "pyproject.toml")
             for hit in wrong.finditer(path.read_text())]  # fmt: skip
    assert found == []


def test_every_extra_that_is_named_exists() -> None:
    named = {extra for path in (*PAGES, *SOURCES)
             for extras in re.findall(r"(?:millrace-streams|'\.|\.whl)\[([a-z,]+)\]", path.read_text())
             for extra in extras.split(",")}  # fmt: skip

    assert {"server", "spark"} <= named
    assert named <= set(PROJECT["optional-dependencies"])


def test_the_project_links_to_no_page_that_does_not_exist() -> None:
    """Nothing is published yet: neither a repository nor pages. A link to one is added with the page."""
    assert "urls" not in PROJECT
    others = (ROOT / "pyproject.toml", ROOT / "observability" / "alerts.yml")
    assert [path.name for path in (*PAGES, *others) if "readthedocs.io" in path.read_text()] == []


@pytest.mark.slow
def test_a_plain_installation_asks_for_little(wheel: Path) -> None:
    assert {each.name for each in requirements_of(wheel)} == {"construct", "crc32c", "numpy", "uvloop", "xxhash"}


@pytest.mark.slow
@pytest.mark.parametrize(("without", "has_uvloop"), [("", "True"), ("uvloop", "False")])
def test_a_plain_installation_is_a_client(
    environment: Environment, served: TestServer, without: str, has_uvloop: str
) -> None:
    """For asyncio and for threads; where there is no uvloop, too."""
    packages = environment(without=without)
    done = run_python(packages, "-W", "error", "-c", CLIENT, served.address, f"shop/orders{without}")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['by asyncio', 'by a thread']", "[]", has_uvloop]


MISSING = {
    "millrace.WriterOptions(compression=millrace.Compression.ZSTD)": ("zstandard", "compression"),
    "millrace.WriterOptions(compression=millrace.Compression.LZ4)": ("lz4", "compression"),
    "millrace.spark_source": ("pyspark", "spark"),
    "__import__('millrace.spark_source')": ("pyspark", "spark"),
    "__import__('millrace.spark_source.options')": ("pyspark", "spark"),
    "__import__('millrace', fromlist=['tracing']).tracing": ("opentelemetry", "otel"),
    "__import__('millrace.tracing')": ("opentelemetry", "otel"),
    "__import__('millrace.client.tracing')": ("opentelemetry", "otel"),
    "next(client.reader('shop/missed', end=millrace.TAIL).arrow_batches())": ("pyarrow", "arrow"),
    "client.writer('shop/missed').write_arrow(None)": ("pyarrow", "arrow"),
    "millrace.testing.server().__enter__()": ("aiofiles", "server"),
}

ASKING = """
import pickle, sys, millrace
address, *programs = sys.argv[1:]
with millrace.blocking.connect(address) as client:
    client.create_stream("shop/missed")
    with client.writer("shop/missed") as writer:
        writer.write(b"x").result()
    for program in programs:
        try:
            eval(program)
        except millrace.MissingExtraError as error:
            assert isinstance(error, ImportError)
            print(pickle.loads(pickle.dumps(error)))
"""


@pytest.mark.slow
def test_what_is_missing_is_named_with_the_extra_that_has_it(environment: Environment, served: TestServer) -> None:
    done = run_python(environment(), "-c", ASKING, served.address, *MISSING)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{package} is not installed; install it with: pip install 'millrace-streams[{extra}]'"
        for package, extra in MISSING.values()
    ]


@pytest.mark.slow
def test_the_command_says_what_it_needs(environment: Environment) -> None:
    done = run_python(environment(), "-c", MILLRACE, "--version")

    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(r"error: .* is not installed; .*: pip install 'millrace-streams\[cli\]'\n", done.stderr)


COMMANDS = """
import contextlib, io, json, sys
from importlib.metadata import entry_points

(script,) = entry_points(group="console_scripts", name="millrace")
told = []
for command in sys.argv[1:]:
    sys.argv = ["millrace", *command.split()]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = script.load()()
    told.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(told))
"""


def run_commands(packages: Path, *commands: str, **variables: str) -> list[tuple[int, str, str]]:
    """Return exit code, output and errors of commands, run one after the other in one process."""
    done = run_python(packages, "-c", COMMANDS, *commands, **variables)
    assert done.returncode == 0, done.stderr
    return [(code, out, err) for code, out, err in json.loads(done.stdout)]


@pytest.mark.slow
def test_the_command_without_a_server(environment: Environment, served: TestServer) -> None:
    """Those commands work that talk to one elsewhere; the others say what they need."""
    version, made, listed, helped, *refused = run_commands(
        environment("cli"),
        "--version", "stream create shop/carts", "stream list", "--help",
        "serve --listen :1", "verify /nowhere", "settings",
        MILLRACE_ADDRESS=served.address,
    )  # fmt: skip

    assert version == (0, f"millrace {PROJECT['version']}\n", "")
    assert made[0] == 0
    assert "shop/carts" in listed[1]
    assert helped[0] == 0
    for command in ("serve", "settings", "verify", "stream", "read"):
        assert f" {command} " in helped[1]
    for code, out, err in refused:
        assert (code, out) == (1, "")
        assert "pip install 'millrace-streams[server]'" in err


@pytest.mark.slow
def test_the_server_has_all_that_its_commands_need(environment: Environment) -> None:
    names = ("serve", "settings", "inspect", "verify", "repair", "doctor", "bench", "stream")

    for code, _, err in run_commands(environment("server"), *(f"{name} --help" for name in names)):
        assert code == 0, err


@pytest.mark.slow
def test_the_first_command_of_the_readme_serves(environment: Environment, tmp_path: Path) -> None:
    (installation,) = re.findall(
        r"`pip install '\.\[([a-z,]+)\]'`\. Then start a server", (ROOT / "README.md").read_text()
    )
    (command,) = re.findall(r"^\$ millrace (serve --data-dir \S+)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    packages = environment(installation)
    process = subprocess.Popen(
        [python_of(packages), "-c", MILLRACE, *command.split(), "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0"],
        stderr=subprocess.PIPE, text=True, env=SETTINGS_SMALL, cwd=tmp_path,
    )  # fmt: skip
    assert process.stderr is not None
    address = next(line for line in process.stderr if "serving address=" in line).partition("address=")[2].split()[0]
    done = run_python(packages, "-c", CLIENT, address, "shop/orders")
    process.send_signal(signal.SIGTERM)
    process.communicate()

    assert "by asyncio" in done.stdout, done.stderr
    assert process.returncode == 0
    assert (tmp_path / command.split()[-1] / "identity.json").exists()
