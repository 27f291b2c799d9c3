r"""The PROXY protocol, versions 1 and 2: a trusted proxy reports the address of the host that connected to it.

    version 1    PROXY TCP4 192.0.2.7 198.51.100.1 50312 9240\r\n
    version 2    12 bytes of signature, version and command, family, length; then addresses and extensions

A header precedes all other bytes of a connection. It is only looked for on connections of trusted proxies: everybody
else could claim any address. (https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt)
"""

from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Final, NamedTuple

HEADER_SIZE_BYTES_MAX: Final = 4096
"""The extensions of version 2 could be 64 KiB; proxies send some hundred bytes."""
_V1_START: Final = b"PROXY "
_V1_SIZE_BYTES_MAX: Final = 107
_V2_START: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_FIXED_SIZE_BYTES: Final = 16
_V2_LOCAL, _V2_PROXY = 0x20, 0x21
_V2_ADDRESS_SIZES: Final = {0x11: 4, 0x21: 16}
"""By family and transport, of TCP: the size of one address, in bytes."""


class ProxyHeaderError(Exception):
    """A header of the PROXY protocol that is not valid."""


class ProxyHeader(NamedTuple):
    """The start of a connection.

    Attributes:
        size_bytes: 0 if the connection does not begin with a header.
        host: the address of the host that connected to the proxy; empty if the connection is the proxy's own, such as a
            health check.
        port: of that host.
    """

    size_bytes: int
    host: str = ""
    port: int = 0


class TrustedProxies:
    """The proxies whose headers are trusted.

    Args:
        text: addresses and networks, separated by commas.

    Raises:
        ValueError: part of the text is not an address or a network.
    """

    def __init__(self, text: str) -> None:
        parts = [part.strip() for part in text.split(",")]
        self._networks: list[IPv4Network | IPv6Network] = [ip_network(part, strict=False) for part in parts if part]

    def __bool__(self) -> bool:
        return bool(self._networks)

    def trusts(self, peername: Any) -> bool:
        """Return whether the peer of a transport is one of the proxies."""
        if not self._networks or not isinstance(peername, tuple) or not peername:
            return False
        address = ip_address(str(peername[0]).partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self._networks)


NO_PROXIES: Final = TrustedProxies("")


def proxy_header(data: bytes) -> ProxyHeader | None:
    """Return the header that received bytes begin with; None if more bytes are needed.

    Raises:
        ProxyHeaderError: the bytes begin as a header and are not a valid one.
    """
    if data.startswith(_V1_START):
        return _version_1(data)
    if data.startswith(_V2_START):
        return _version_2(data)
    if _V1_START.startswith(data) or _V2_START.startswith(data):
        return None
    return ProxyHeader(0)


def _version_1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, _V1_SIZE_BYTES_MAX)
    if end < 0:
        if len(data) >= _V1_SIZE_BYTES_MAX:
            raise ProxyHeaderError(f"a PROXY header has at most {_V1_SIZE_BYTES_MAX} bytes")
        return None
    line = data[:end].decode("latin-1")
    words = line.split(" ")
    if words[1] == "UNKNOWN":
        return ProxyHeader(end + 2)
    try:
        _, family, source, _, port, _ = words
        version = {"TCP4": 4, "TCP6": 6}[family]
        host = ip_address(source)
        if host.version != version or not 0 <= int(port) <= 0xFFFF:
            raise ValueError
    except (ValueError, KeyError):
        raise ProxyHeaderError(
            f"{line!r} is not a PROXY header: write PROXY TCP4 or TCP6, two addresses, and two ports"
        ) from None
    return ProxyHeader(end + 2, str(host), int(port))


def _version_2(data: bytes) -> ProxyHeader | None:
    if len(data) < _V2_FIXED_SIZE_BYTES:
        return None
    command, family = data[12], data[13]
    size_bytes = _V2_FIXED_SIZE_BYTES + int.from_bytes(data[14:16])
    if command not in (_V2_LOCAL, _V2_PROXY) or size_bytes > HEADER_SIZE_BYTES_MAX:
        raise ProxyHeaderError(
            f"a PROXY header of version and command {command:#x} and {size_bytes} bytes is not supported: the version"
            f" is 2, the command LOCAL or PROXY, and the size at most {HEADER_SIZE_BYTES_MAX}"
        )
    if len(data) < size_bytes:
        return None
    address_size = _V2_ADDRESS_SIZES.get(family)
    if command == _V2_LOCAL or address_size is None:
        return ProxyHeader(size_bytes)
    ports = _V2_FIXED_SIZE_BYTES + 2 * address_size
    if size_bytes < ports + 4:
        raise ProxyHeaderError(f"a PROXY header of {size_bytes} bytes is too short for its addresses")
    host = ip_address(data[_V2_FIXED_SIZE_BYTES : _V2_FIXED_SIZE_BYTES + address_size])
    return ProxyHeader(size_bytes, str(host), int.from_bytes(data[ports : ports + 2]))
