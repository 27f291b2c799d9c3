"""The address of a peer's host. For IPv6 it is the network, because a host may have any number of addresses in it."""

from ipaddress import IPv6Address
from typing import Any, Final

IPV6_NETWORK_BITS: Final = 64


def address_of(peername: Any) -> str:
    """Return the host address in the peer name of a transport; empty if it has none."""
    if not isinstance(peername, tuple) or not peername:
        return ""
    host = str(peername[0])
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> IPV6_NETWORK_BITS << IPV6_NETWORK_BITS))
