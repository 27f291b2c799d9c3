"""Recognition of loopback hosts."""

from ipaddress import ip_address
from typing import Final

LOCAL_NAME: Final = "localhost"


def is_loopback(host: str) -> bool:
    """Return whether a host name or IP address is a loopback one, without resolving it."""
    host = host.lower()
    if host == LOCAL_NAME or host.endswith(f".{LOCAL_NAME}"):
        return True
    try:
        address = ip_address(host)
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    except ValueError:
        return False
