"""Where a peer is: the address of its host; of IPv6, its network, as a host may have any number of addresses there."""

from ipaddress import IPv6Address
from typing import Any, Final

IPV6_NETWORK_BITS: Final = 64


def address_of(peername: Any) -> str:
    """Return the address of a host, of what a transport calls its peer; empty if there is none."""
    if not isinstance(peername, tuple) or not peername:
        return ""
    host = str(peername[0])
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> IPV6_NETWORK_BITS << IPV6_NETWORK_BITS))
