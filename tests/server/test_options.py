"""Settings from arguments and from the environment."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from millrace.server.errors import ConfigurationError
from millrace.server.options import _PARTS, ServerOptions, options_from_environment, parse_listen


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9240", "127.0.0.1", 9240),
        ("localhost", "localhost", 7),
        (":80", "0.0.0.0", 80),
        ("[::1]:80", "::1", 80),
        ("[::1]", "::1", 7),
    ],
)
def test_addresses_are_read(text: str, host: str, port: int) -> None:
    address = parse_listen(text, default_port=7)
    assert (address.host, address.port) == (host, port)
    assert parse_listen(str(address), default_port=1) == address


@pytest.mark.parametrize("text", ["", "a:b", "a:", "a:65536", "a:-1", "a:\u0661", "::1", "[::1", "a b:1"])
def test_what_is_not_an_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        parse_listen(text, default_port=7)


def test_every_option_of_every_part_can_be_set_by_the_environment() -> None:
    for part, kind in _PARTS.items():
        defaults = kind()
        for option in fields(kind):
            value: Any = getattr(defaults, option.name)
            name = f"MILLRACE_{part}_{option.name}".upper()
            assert options_from_environment({name: str(value)}) == {part: defaults}, name


def test_options_of_one_part_come_together() -> None:
    found = options_from_environment(
        {"MILLRACE_CONTAINER_FLUSH_AGE_S": "1.5", "MILLRACE_CONTAINER_FLUSHES_AT_ONCE": "3", "HOME": "/"}
    )
    assert found["container"].flush_age_s == 1.5
    assert found["container"].flushes_at_once == 3
    assert ServerOptions(data_folder=Path("x"), **found).container is found["container"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MILLRACE_WAL_NOTHING", "1"),
        ("MILLRACE_WAL_FILES_MAX", "many"),
        ("MILLRACE_WAL_FILES_MAX", "1.5"),
        ("MILLRACE_WAL_FILES_MAX", "1"),
        ("MILLRACE_CONTAINER_FLUSH_AGE_S", "-1"),
        ("MILLRACE_CONTAINER_FLUSH_AGE_S", "nan"),
        ("MILLRACE_FRONT_CONNECTIONS_COUNT_MAX", "0"),
    ],
)
def test_wrong_settings_are_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError):
        options_from_environment({name: value})


def test_a_shutdown_takes_some_time() -> None:
    with pytest.raises(ConfigurationError):
        ServerOptions(data_folder=Path("x"), shutdown_s=0)


def test_names_of_no_part_of_ours_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """Kubernetes injects such variables for a service called millrace."""
    assert options_from_environment({"MILLRACE_PORT_9240_TCP": "tcp://10.0.0.1:9240"}) == {}
    assert "MILLRACE_PORT_9240_TCP" in caplog.text
