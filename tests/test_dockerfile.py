"""The Dockerfile, as far as it can be checked without Docker: no image is built here."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from millrace.cli.main import COMMANDS
from millrace.client.testing import server
from millrace.server.errors import ConfigurationError
from millrace.server.settings import load_settings
from millrace.wire.limits import CONSOLE_PORT, DATA_PORT
from tests.support.installed import ROOT, build_wheel

LINES = [line for line in (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines() if line]
STOP_S = 10.0
"""How long `docker stop` waits before it kills."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def arguments(instruction: str) -> list[str]:
    """Return what follows each use of an instruction."""
    return [line.partition(" ")[2].strip() for line in LINES if line.startswith(f"{instruction} ")]


def option_of(command: list[str], name: str) -> list[str]:
    """Return what follows each use of an option, as a word of its own or after an equals sign."""
    words = [word for part in command for word in part.split("=", 1)]
    return [value for option, value in pairwise(words) if option == name]


def copied() -> list[str]:
    """Return what is copied out of the tree."""
    return [name for line in arguments("COPY") if not line.startswith("--from") for name in line.split()[:-1]]


@pytest.mark.slow
def test_what_is_copied_is_enough_to_build_the_wheel(tmp_path: Path) -> None:
    for name in copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tmp_path / name)

    assert build_wheel(tmp_path / "dist", source=tmp_path).is_file()


def test_nothing_that_is_copied_is_kept_out_of_the_context() -> None:
    let_in = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)

    assert sorted(let_in) == sorted(copied())


def test_each_program_that_the_image_runs_is_there() -> None:
    (entry,), (command,) = arguments("ENTRYPOINT"), arguments("CMD")
    (script,) = json.loads(entry)
    (name,) = json.loads(command)

    assert script in PROJECT["scripts"]
    assert name in COMMANDS
    programs = {part.split()[0] for line in arguments("RUN") for part in line.split("&&")}
    assert programs == {"pip", "groupadd", "useradd", "install"}  # all but pip are in every Debian
    (extras,) = re.findall(r"pip install .*'\.\[(.*)\]'", " ".join(arguments("RUN")))
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])


def test_python_is_one_that_is_supported() -> None:
    versions = set(re.findall(r"^python:(3\.\d+)-slim", "\n".join(arguments("FROM")), re.MULTILINE))

    assert len(versions) == 1
    assert f"Programming Language :: Python :: {versions.pop()}" in PROJECT["classifiers"]


def test_its_settings_are_settings_and_its_data_are_in_the_volume(monkeypatch: pytest.MonkeyPatch) -> None:
    (environment,), (volume,), (user,) = arguments("ENV"), arguments("VOLUME"), arguments("USER")
    for assignment in environment.split():
        monkeypatch.setenv(*assignment.split("=", 1))
    with pytest.raises(ConfigurationError, match="MILLRACE_LISTEN is"):
        load_settings({})
    settings = load_settings({"front.token": "s3cret"})

    assert [str(each.source) for each in settings.settings].count("environment") == len(environment.split())
    assert str(settings.options.data_folder) == volume
    assert arguments("EXPOSE") == [f"{DATA_PORT} {CONSOLE_PORT}"]
    assert settings.options.console is not None
    assert (settings.options.listen.port, settings.options.console.port) == (DATA_PORT, CONSOLE_PORT)
    assert settings.options.shutdown_s < STOP_S
    group, user_, folder = (
        shlex.split(part) for line in arguments("RUN") if "useradd" in line for part in line.split("&&")
    )
    (uid,), (gid,) = option_of(user_, "--uid"), option_of(group, "--gid")
    assert user == f"{uid}:{gid}"
    assert option_of(user_, "--gid") == option_of(folder, "--group") == group[-1:]
    assert option_of(folder, "--owner") == user_[-1:]
    assert folder[-1] == volume


@pytest.mark.slow
def test_a_server_that_serves_is_healthy_and_another_is_not() -> None:
    (line,) = arguments("HEALTHCHECK")
    python, *check = json.loads(line.partition("CMD ")[2])
    assert python == "python"

    def run(console: str) -> int:
        command = [argument.replace(f"127.0.0.1:{CONSOLE_PORT}", console) for argument in check]
        assert command != check
        return subprocess.run([sys.executable, *command], capture_output=True, check=False).returncode

    with server(console="127.0.0.1:0") as running:
        console = running.console_address
        assert run(console) == 0
    assert run(console) == 1
