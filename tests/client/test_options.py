import math
import ssl

import pytest

from millrace.client.options import ClientOptions, parse_address, parse_addresses
from millrace.client.write.options import WriterOptions, delivery_limit_s
from millrace.model.address import Address
from tests.support.tables import table


@table(
    ("text", "address"),
    [
        ("localhost", Address("localhost", 9240)),
        ("10.0.0.1:77", Address("10.0.0.1", 77)),
        (" db:1 ", Address("db", 1)),
        ("[::1]:77", Address("::1", 77)),
        ("[::1]", Address("::1", 9240)),
    ],
)
def test_addresses_are_parsed_and_printed(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@table("text", ["", ":1", "h:x", "h:0", "h:65536", "::1", "[::1", "[::1]77", "h:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        parse_address(text)


def test_several_addresses_have_commas_between_them() -> None:
    addresses = parse_addresses("a, [::1]:77,a:9240")

    assert addresses.members == (Address("a", 9240), Address("::1", 77))
    assert str(addresses) == "a:9240,[::1]:77"
    assert parse_addresses(str(addresses)) == addresses


@table("text", ["", ",", "a,", ",a", "a,,b", "a,b:x"])
def test_each_of_several_addresses_must_be_one(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        parse_addresses(text)


def test_the_token_is_not_shown() -> None:
    """Behaviour 53: nothing secret is logged."""
    assert "secret" not in repr(ClientOptions(token="secret"))


def test_tls_takes_a_switch_or_a_context() -> None:
    context = ssl.create_default_context()

    assert ClientOptions().tls_context() is None
    assert ClientOptions(tls=context).tls_context() is context
    switched = ClientOptions(tls=True).tls_context()
    assert switched is not None
    assert switched.verify_mode is ssl.CERT_REQUIRED


@table("value", [0, -1, math.nan])
@table("name", ["connect_timeout_s", "request_timeout_s", "outage_timeout_s", "keepalive_s", "in_flight_bytes_max"])
def test_limits_must_be_above_zero(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        ClientOptions(**{name: value})  # type: ignore[arg-type]  # only numbers here


def test_only_writers_without_an_id_give_up_by_themselves() -> None:
    """Behaviour 89."""
    assert delivery_limit_s(None, is_named=True) == math.inf
    assert delivery_limit_s(None, is_named=False) == 120
    for is_named in (True, False):
        assert delivery_limit_s(5, is_named=is_named) == 5
        assert delivery_limit_s(math.inf, is_named=is_named) == math.inf
    with pytest.raises(ValueError, match="delivery_timeout_s"):
        WriterOptions(delivery_timeout_s=0)
