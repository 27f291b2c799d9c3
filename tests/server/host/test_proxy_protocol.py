"""Behaviour 104: each host that uses a proxy has its own address."""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.server.host.proxy_protocol import ProxyHeader, ProxyHeaderError, TrustedProxies, proxy_header
from tests.support.tables import table

V1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 50312 9240\r\n"
SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def version_2(host: str, *, command: int = 0x21, extensions: bytes = b"") -> bytes:
    address = ip_address(host).packed
    family = 0x11 if len(address) == 4 else 0x21
    rest = address + address + (50312).to_bytes(2) + (9240).to_bytes(2) + extensions
    return SIGNATURE + bytes([command, family]) + len(rest).to_bytes(2) + rest


@table(
    ("data", "header"),
    [
        (V1, ProxyHeader(len(V1), "192.0.2.7", 50312)),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 1 2\r\n", ProxyHeader(40, "2001:db8::7", 1)),
        (b"PROXY UNKNOWN\r\n", ProxyHeader(15)),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", ProxyHeader(35)),
        (version_2("192.0.2.7"), ProxyHeader(28, "192.0.2.7", 50312)),
        (version_2("2001:db8::7"), ProxyHeader(52, "2001:db8::7", 50312)),
        (version_2("192.0.2.7", extensions=bytes(100)), ProxyHeader(128, "192.0.2.7", 50312)),
        (version_2("192.0.2.7", command=0x20), ProxyHeader(28)),
        (SIGNATURE + bytes([0x21, 0x31, 0, 216]) + bytes(216), ProxyHeader(232)),
    ],
)
def test_a_header_names_the_host_and_may_come_in_pieces(data: bytes, header: ProxyHeader) -> None:
    assert proxy_header(data) == proxy_header(data + b"more") == header
    assert all(proxy_header(data[:size]) is None for size in range(len(data)))


@table("data", [b"GET / HTTP/1.1\r\n", b"PUT", b"\x20\x00\x00\x00", b"PROXIES", b"\r\n\r\nx"])
def test_other_bytes_are_not_a_header(data: bytes) -> None:
    assert proxy_header(data) == ProxyHeader(0)


@table(
    "data",
    [
        b"PROXY TCP4 192.0.2.7\r\n",
        b"PROXY TCP4 2001:db8::7 2001:db8::1 1 2\r\n",
        b"PROXY TCP4 192.0.2.7 192.0.2.8 65536 2\r\n",
        b"PROXY TCP4 a b 1 2\r\n",
        b"PROXY UDP4 192.0.2.7 192.0.2.8 1 2\r\n",
        b"PROXY TCP4 " + b"1" * 100,
        SIGNATURE + bytes([0x11, 0x11, 0, 12]) + bytes(12),
        SIGNATURE + bytes([0x21, 0x11, 0xFF, 0xFF]),
        SIGNATURE + bytes([0x21, 0x11, 0, 4]) + bytes(4),
    ],
)
def test_an_invalid_header_is_an_error(data: bytes) -> None:
    with pytest.raises(ProxyHeaderError):
        proxy_header(data)


@given(st.sampled_from([b"PROXY ", SIGNATURE, b""]), st.binary(max_size=300))
def test_any_bytes_have_a_result(start: bytes, rest: bytes) -> None:
    try:
        header = proxy_header(start + rest)
    except ProxyHeaderError:
        return
    assert header is None or header.size_bytes <= len(start + rest)


def test_proxies_are_addresses_and_networks() -> None:
    proxies = TrustedProxies("10.0.0.5, 10.1.0.0/16,2001:db8::/32")
    assert proxies.trusts(("10.0.0.5", 1))
    assert proxies.trusts(("::ffff:10.1.2.3", 1, 0, 0))
    assert proxies.trusts(("2001:db8::9", 1, 0, 0))
    assert not proxies.trusts(("10.0.0.6", 1))
    assert not proxies.trusts("")
    assert not TrustedProxies("").trusts(("10.0.0.5", 1))
    with pytest.raises(ValueError, match=r"proxy\.example"):
        TrustedProxies("proxy.example")
