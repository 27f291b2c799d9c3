import pytest

from millrace.model.address import Address, Addresses
from tests.support.tables import table


@table(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9240", "127.0.0.1", 9240),
        (" localhost ", "localhost", 7),
        (":80", "", 80),
        ("host:0", "host", 0),
        ("[::1]:80", "::1", 80),
        ("[::1]", "::1", 7),
    ],
)
def test_an_address_is_read_and_written(text: str, host: str, port: int) -> None:
    address = Address.parse(text, default_port=7)

    assert (address.host, address.port) == (host, port)
    assert Address.parse(str(address), default_port=1) == address


@table("text", ["", "a:b", "a:", "a:65536", "a:-1", "a:\u0661", "::1", "[::1", "a b:1"])
def test_what_is_no_address_is_refused_with_its_form(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        Address.parse(text, default_port=7)


def test_addresses_are_walked_from_any_of_them_on() -> None:
    first, second, third = (Address(host, 1) for host in "abc")
    addresses = Addresses((first, second, third))

    assert addresses.beginning_with(first) == (first, second, third)
    assert addresses.beginning_with(second) == (second, third, first)
    assert str(addresses) == "a:1,b:1,c:1"
