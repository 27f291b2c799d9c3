"""The options of a server as a whole."""

from pathlib import Path
from typing import Any

import pytest

from millrace.model.address import Address
from millrace.server.cache import CacheOptions
from millrace.server.errors import ConfigurationError, SettingError
from millrace.server.front.options import FrontOptions
from millrace.server.object_store.url import StoreUrl
from millrace.server.options import LogLevel, LogOptions, ServerOptions, parse_listen
from millrace.wire.limits import KIB, MIB
from tests.support.tables import table


@table(
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


@table("text", ["", "a:b", "a:", "a:65536", "a:-1", "a:\u0661", "::1", "[::1", "a b:1"])
def test_what_is_not_an_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        parse_listen(text, default_port=7)


def test_a_shutdown_takes_some_time() -> None:
    with pytest.raises(ConfigurationError):
        ServerOptions(data_folder=Path("x"), shutdown_s=0)


def test_the_console_is_apart_from_the_data_port() -> None:
    place = Address("127.0.0.1", 9240)
    with pytest.raises(SettingError, match=r"console is 127\.0\.0\.1:9240; it must be another address"):
        ServerOptions(data_folder=Path("x"), listen=place, console=place)
    free = Address("127.0.0.1", 0)
    assert ServerOptions(data_folder=Path("x"), listen=free, console=free).console == free


@table("host", ["0.0.0.0", "::", "192.0.2.1", "millrace.example"])
@table("name", ["listen", "console"])
def test_a_port_for_other_machines_needs_a_token_or_an_insecure_server(name: str, host: str) -> None:
    place: dict[str, Any] = {name: Address(host, 9000)}
    with pytest.raises(SettingError) as caught:
        ServerOptions(**place)
    for part in (f"{name} is {Address(host, 9000)};", "a loopback address", "MILLRACE_FRONT_TOKEN", "--insecure"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)

    ServerOptions(**place, front=FrontOptions(token="s3cret"))
    ServerOptions(**place, front=FrontOptions(token_file=Path("token")))
    ServerOptions(**place, insecure=True)


def test_a_loopback_port_needs_no_token() -> None:
    ServerOptions(listen=Address("localhost", 9000), console=Address("::1", 9001))


@pytest.mark.parametrize(
    ("level", "on_terminal", "elsewhere"), [("auto", "WARNING", "INFO"), ("debug", "DEBUG", "DEBUG")]
)
def test_a_terminal_is_told_less(level: LogLevel, on_terminal: str, elsewhere: str) -> None:
    assert LogOptions(level=level).level_name(is_terminal=True) == on_terminal
    assert LogOptions(level=level).level_name(is_terminal=False) == elsewhere


def test_a_store_is_read_in_larger_pieces_and_flushes_have_a_budget() -> None:
    """A folder is left as it is."""
    local = ServerOptions()
    assert local.for_storage() is local
    options = ServerOptions(store=StoreUrl.parse("s3://bucket/prefix")).for_storage()
    assert options.container.small_flushes_per_s_max == 20.0
    assert options.container.flushes_at_once == 8
    assert (options.cache.page_size_bytes, options.cache.read_ahead_bytes) == (4 * MIB, 32 * MIB)
    assert options.cache.fetches_max == 32


def test_a_small_cache_is_filled_by_smaller_reads() -> None:
    cache = CacheOptions(budget_bytes=4 * MIB, page_size_bytes=64 * KIB)
    options = ServerOptions(store=StoreUrl.parse("s3://bucket/prefix"), cache=cache)
    assert options.for_storage().cache.page_size_bytes == 1 * MIB
