"""Where settings are from, and what is said of one that is wrong."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.client.options import ADDRESS_VARIABLE, TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from millrace.client.pytest_plugin import SEED_VARIABLE
from millrace.model.address import Address
from millrace.server.errors import ConfigurationError
from millrace.server.object_store import StoreUrl
from millrace.server.options import ServerOptions
from millrace.server.settings import OTHERS, LoadedSettings, declared, load_settings, loading, parse_assignments
from millrace.wire.limits import MIB

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file of settings."""

    def write_file(content: str) -> Path:
        file = tmp_path / "millrace.toml"
        file.write_text(content)
        return file

    return write_file


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is set but by the test."""
    for setting in declared().values():
        monkeypatch.delenv(setting.variable, raising=False)


def loaded(settings: LoadedSettings, name: str) -> tuple[Any, str]:
    """Return the value of a setting, and where it is from."""
    (found,) = [each for each in settings.settings if each.declared.name == name]
    return found.value, str(found.source)


def test_without_anything_all_is_as_declared() -> None:
    settings = load_settings({})

    assert settings.options == ServerOptions()
    assert [each.declared.name for each in settings.settings] == list(declared())
    assert {each.source for each in settings.settings} == {"default"}


def test_what_is_nearer_wins(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Command line, environment, file, default."""
    file = write("[wal]\nfiles_max = 3\nspare_files = 1\nspare_files_max = 4\n")
    monkeypatch.setenv("MILLRACE_WAL_FILES_MAX", "5")
    monkeypatch.setenv("MILLRACE_WAL_SPARE_FILES", "2")

    settings = load_settings({"wal.files_max": "7"}, file=file)

    assert loaded(settings, "wal.files_max") == (7, "command line")
    assert loaded(settings, "wal.spare_files") == (2, "environment")
    assert loaded(settings, "wal.spare_files_max") == (4, "file")
    assert loaded(settings, "wal.file_size_bytes") == (64 * MIB, "default")
    assert (settings.options.wal.files_max, settings.options.wal.spare_files) == (7, 2)


@pytest.mark.parametrize("name", list(declared()))
def test_every_setting_can_be_set_from_everywhere(name: str, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = declared()[name]
    text = "s3cret" if setting.is_secret else setting.text(setting.default)
    expected = "s3cret" if setting.is_secret else setting.default

    assert loaded(load_settings({name: text}), name) == (expected, "command line")
    header = f"[{setting.part}]\n" if setting.part else ""
    assert loaded(load_settings({}, file=write(f"{header}{setting.option} = '{text}'")), name) == (expected, "file")
    monkeypatch.setenv(setting.variable, text)
    assert loaded(load_settings({}), name) == (expected, "environment")


@pytest.mark.parametrize(
    ("content", "name", "value"),
    [
        ("[wal]\nfile_size_bytes = '128 MiB'", "wal.file_size_bytes", 128 * MIB),
        ("[wal]\nfile_size_bytes = 134217728", "wal.file_size_bytes", 128 * MIB),
        ("[wal]\nretry_interval_s = '250ms'", "wal.retry_interval_s", 0.25),
        ("[transactions]\nlease_s_max = '2 h'", "transactions.lease_s_max", 7200),
        ("[feed]\nkeepalive_s = 15", "feed.keepalive_s", 15.0),
        ("listen = ':80'\ninsecure = true", "listen", Address("0.0.0.0", 80)),
        ("console = 'none'", "console", None),
        ("store = 's3://bucket/a/'", "store", StoreUrl("s3", "bucket", "a")),
        ("store = 'none'", "store", None),
        ("[front]\ntoken_file = '/etc/token'", "front.token_file", Path("/etc/token")),
        ("[front]\ntoken_file = 'none'", "front.token_file", None),
        ("[objects]\nattempt_s = '30 s'", "objects.attempt_s", 30.0),
        ("data_dir = '/var/lib/millrace'", "data_dir", Path("/var/lib/millrace")),
        ("[cache]\nprotected_share = 0.5", "cache.protected_share", 0.5),
    ],
)
def test_values_have_units(content: str, name: str, value: object, write: Write) -> None:
    assert loaded(load_settings({}, file=write(content)), name) == (value, "file")


def test_models_are_made_only_of_the_parts_of_which_something_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """To make those of all parts would take a tenth of the start of a server."""
    monkeypatch.setenv("MILLRACE_WAL_FILES_MAX", "5")
    loading._model.cache_clear()
    loading._model_of.cache_clear()

    load_settings({"log.level": "info"})

    assert loading._model_of.cache_info().currsize == 2


def test_the_environment_names_the_file(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MILLRACE_CONFIG", str(write("shutdown_s = 3")))
    settings = load_settings({})
    assert loaded(settings, "shutdown_s") == (3.0, "file")
    assert settings.file == tmp_path / "millrace.toml"

    other = tmp_path / "other.toml"
    other.write_text("shutdown_s = 4")
    assert loaded(load_settings({}, file=other), "shutdown_s") == (4.0, "file")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[wall]\nx = 1", "wall is not a setting; did you mean wal?"),
        ("[wal]\nfile_max = 3", "wal.file_max is not a setting; did you mean wal.files_max?"),
        ("data_dri = 'x'", "data_dri is not a setting; did you mean data_dir?"),
        ("something = 1", "something is not a setting; `millrace settings` lists them"),
        ("wal = 3", "wal is 3; it must be a table, [wal]"),
        ("[wal]\nfiles_max = 1", "wal.files_max is 1; it must be at least 2"),
        ("[wal]\nfiles_max = 'many'", "wal.files_max is 'many'; it must be a whole number"),
        ("[wal]\nfiles_max = 1.5", "wal.files_max is 1.5; it must be a whole number"),
        ("[wal]\nheadroom_bytes = '1 furlong'", "wal.headroom_bytes is '1 furlong'; it must be a size, such as 4096,"),
        ("[container]\nflush_age_s = -1", "container.flush_age_s is -1; it must be at least 0 s"),
        ("[container]\nflush_age_s = nan", "container.flush_age_s is nan; it must be a duration"),
        ("[cache]\nprotected_share = inf", "cache.protected_share is inf; it must be a number"),
        ("[front]\nrequest_bytes_max = '1MiB'", "front.request_bytes_max is 1 MiB; it must be at least 64 MiB"),
        ("listen = 'a:b'", "listen is 'a:b'; it must be HOST:PORT"),
        ("console = 9241", "console is 9241; it must be HOST:PORT, or none"),
        ("store = 'bucket'", "store is 'bucket'; it must be s3://BUCKET/PREFIX, gs://"),
        ("[objects]\nputs_count_max = 0", "objects.puts_count_max is 0; it must be 1 to 256"),
        ("[log]\nlevel = 'loud'", "log.level is 'loud'; it must be one of auto, debug, info, warning, error"),
        ("shutdown_s = 0", "shutdown_s is 0 s; it must be above 0"),
    ],
)
def test_a_mistake_in_the_file_is_named(content: str, says: str, write: Write) -> None:
    """The setting, the value, and what would be right."""
    file = write(content)
    with pytest.raises(ConfigurationError, match="^" + re.escape(f"{file}: {says}")):
        load_settings({}, file=file)


def test_all_mistakes_are_told_at_once(write: Write) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings({"tier2.threads": "x"}, file=write("[wal]\nfiles_max = 'x'\nspare_files = 'y'"))
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("MILLRACE_WAL_FILES_MAX", "1", "MILLRACE_WAL_FILES_MAX is 1; it must be at least 2"),
        ("MILLRACE_WAL_FILES_MAX", "", "MILLRACE_WAL_FILES_MAX is ''; it must be a whole number"),
        ("MILLRACE_WAL_FILE_SISE", "1", "did you mean MILLRACE_WAL_FILE_SIZE_BYTES?"),
        ("MILLRACE_WALL_FILES_MAX", "1", "did you mean MILLRACE_WAL_FILES_MAX?"),
        ("MILLRACE_WAL", "{}", "did you mean MILLRACE_WAL_PLACE?"),
        (
            "MILLRACE_WAL_WHATEVER_IT_IS",
            "1",
            "MILLRACE_WAL_WHATEVER_IT_IS in the environment is not a setting; `millrace settings` lists them",
        ),
        ("MILLRACE_CONFIG", "/nowhere/x.toml", "/nowhere/x.toml: the settings file does not exist"),
    ],
)
def test_a_mistake_in_the_environment_is_named(
    variable: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        load_settings({})


def test_a_default_that_no_longer_fits_is_named() -> None:
    with pytest.raises(
        ConfigurationError, match=r"tail_size_bytes_low is 384 MiB; it must be .* at most tail_size_bytes_h"
    ):
        load_settings({"container.tail_size_bytes_high": "1MiB"})


def test_a_mistake_on_the_command_line_is_named_by_its_option() -> None:
    with pytest.raises(ConfigurationError, match=r"^--listen is 'a:b'; it must be HOST:PORT$"):
        load_settings({"listen": "a:b"})


def test_a_token_and_a_token_file_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match=r"^--token-file is a; it must be none where front.token is set$"):
        load_settings({"front.token": "s3cret", "front.token_file": "a"})


@pytest.mark.parametrize("content", ["x =", "\x00", "[wal]\n[wal]"])
def test_a_file_that_is_not_toml_is_refused(content: str, write: Write) -> None:
    file = write(content)
    with pytest.raises(ConfigurationError, match=f"{file}: is not TOML"):
        load_settings({}, file=file)


def test_secrets_are_in_no_message(write: Write) -> None:
    """Behaviour 53."""
    with pytest.raises(ConfigurationError) as caught:
        load_settings({}, file=write("[front]\ntoken = 123456"))
    assert "123456" not in str(caught.value)
    assert "front.token is (hidden); it must be a text" in str(caught.value)
    assert "s3cret" not in repr(load_settings({"front.token": "s3cret"}).options)


@pytest.mark.parametrize(
    "variable",
    [
        "MILLRACE_SERVICE_HOST",
        "MILLRACE_SERVICE_PORT_DATA",
        "MILLRACE_PORT",
        "MILLRACE_PORT_9240_TCP",
        "MILLRACE_PORT_9240_TCP_PROTO",
        "MILLRACE_CONSOLE_SERVICE_PORT",
        *sorted(OTHERS - {"MILLRACE_CONFIG"}),
    ],
)
def test_names_that_others_have_a_use_for_are_ignored(
    variable: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kubernetes makes such variables for a service called millrace."""
    monkeypatch.setenv(variable, "tcp://10.0.0.1:9240")
    assert load_settings({}).options == ServerOptions()
    assert not caplog.text


def test_names_of_nobody_are_ignored_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MILLRACE_SOMETHING_ELSE", "x")
    assert load_settings({}).options == ServerOptions()
    assert "environment variable ignored name=MILLRACE_SOMETHING_ELSE" in caplog.text


def test_the_variables_of_clients_and_tests_are_known() -> None:
    assert {ADDRESS_VARIABLE, TOKEN_VARIABLE, TOKEN_FILE_VARIABLE, SEED_VARIABLE, "MILLRACE_CONFIG"} == OTHERS


def test_assignments_are_names_and_values() -> None:
    assert parse_assignments(["wal.files_max = 3", "feed.origins=a=b"]) == {"wal.files_max": "3", "feed.origins": "a=b"}
    with pytest.raises(ConfigurationError, match="write NAME=VALUE"):
        parse_assignments(["wal.files_max"])
    with pytest.raises(ConfigurationError, match=r"did you mean wal\.files_max"):
        parse_assignments(["wal.files_mx=3"])
