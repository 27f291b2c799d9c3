"""`millrace settings`."""

from pathlib import Path

import pytest

from millrace.server.settings import declared
from tests.cli.conftest import Run


def test_all_settings_are_listed_with_what_they_do(run: Run) -> None:
    outcome = run("settings")

    assert outcome.code == 0
    lines = {line.split()[0]: line for line in outcome.lines[1:]}
    assert list(lines) == list(declared())
    assert all(line.endswith(declared()[name].effect) for name, line in lines.items())


def test_a_value_is_listed_with_where_it_is_from(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text("[cache]\nbudget_bytes = '512MiB'\n")
    monkeypatch.setenv("MILLRACE_CACHE_READERS_MAX", "7")

    outcome = run("settings", "cache", "--config", tmp_path / "m.toml", "--set", "cache.fetches_max=9", "--json")

    listed = {each["name"]: each for each in outcome.json}
    assert all(name.startswith("cache.") for name in listed)
    assert listed["cache.budget_bytes"] == {
        "name": "cache.budget_bytes",
        "variable": "MILLRACE_CACHE_BUDGET_BYTES",
        "value": "512 MiB",
        "default": "256 MiB",
        "source": "file",
        "effect": declared()["cache.budget_bytes"].effect,
    }
    found = {name: (each["value"], each["source"]) for name, each in listed.items() if each["source"] != "default"}
    assert found == {
        "cache.budget_bytes": ("512 MiB", "file"),
        "cache.readers_max": ("7", "environment"),
        "cache.fetches_max": ("9", "command line"),
    }


def test_one_setting_is_listed_alone(run: Run) -> None:
    assert [each["name"] for each in run("settings", "wal.files_max", "--json").json] == ["wal.files_max"]


def test_options_of_their_own_are_settings_too(run: Run) -> None:
    outcome = run("settings", "--listen", ":9000", "--insecure", "--console", "none", "--data-dir", "/data", "--json")

    listed = {each["name"]: (each["value"], each["source"]) for each in outcome.json}
    assert listed["listen"] == ("0.0.0.0:9000", "command line")
    assert listed["insecure"] == ("true", "command line")
    assert listed["console"] == ("none", "command line")
    assert listed["data_dir"] == ("/data", "command line")


def test_a_token_is_not_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behaviour 53."""
    monkeypatch.setenv("MILLRACE_FRONT_TOKEN", "s3cret")
    outcome = run("settings", "front.token")

    assert "s3cret" not in outcome.out
    assert "(hidden)" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["wall"], "wall is not a setting; did you mean wal?"),
        (["--set", "wal.file_max=3"], "wal.file_max is not a setting; did you mean wal.files_max?"),
        (["--set", "wal.files_max"], "write NAME=VALUE"),
        (["--set", "wal.files_max=1"], "wal.files_max is 1; it must be at least 2"),
        (["--listen", "x:y"], "--listen is 'x:y'; it must be HOST:PORT"),
        (["--listen", ":9000"], "--listen is 0.0.0.0:9000; it must be a loopback address"),
        (["--config", "/nowhere"], "/nowhere: the settings file does not exist"),
    ],
)
def test_a_mistake_is_wrong_usage_and_named(arguments: list[str], says: str, run: Run) -> None:
    outcome = run("settings", *arguments)

    assert outcome.code == 2
    assert says in outcome.err
    assert "Traceback" not in outcome.err
