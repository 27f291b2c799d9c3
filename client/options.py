"""How a client reaches its server and how long it is patient."""

import ssl
from dataclasses import dataclass, field

from millrace.client.transport.retry import Backoff
from millrace.wire.limits import DATA_PORT, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Options of a client; writers and readers have their own beside them.

    Attributes:
        token: sent in the handshake; never logged.
        tls: True for TLS with the system's certificates, or a context of your own.
        connect_timeout_s: for one attempt to connect, handshake included.
        request_timeout_s: for one request, with all reconnects and retries.
        keepalive_s: after so long a silence the server is asked for a sign of life; after two of them the connection
            counts as lost.
        in_flight_bytes_max: appends of one connection that may wait for their ack.
    """

    token: str = field(default="", repr=False)
    tls: bool | ssl.SSLContext = False
    client_name: str = "millrace-python"
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 30.0
    keepalive_s: float = 10.0
    in_flight_bytes_max: int = 64 * MIB
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        for name in ("connect_timeout_s", "request_timeout_s", "keepalive_s", "in_flight_bytes_max"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)} must be above 0")

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the context to connect with, or None for plain TCP."""
        if isinstance(self.tls, ssl.SSLContext):
            return self.tls
        return ssl.create_default_context() if self.tls else None


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Return the address in `host`, `host:port` or `[host]:port`; the port is 9240 where none is given.

    Raises:
        ValueError: the text is none of these.
    """
    text = text.strip()
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"address {text!r} is not of the form [host]:port")
        port = rest[1:]
    elif text.count(":") > 1:
        raise ValueError(f"address {text!r}: write an IPv6 address as [host]:port")
    else:
        host, _, port = text.partition(":")
    if not host:
        raise ValueError(f"address {text!r} names no host")
    if not port:
        return Address(host, DATA_PORT)
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ValueError(f"address {text!r}: {port!r} is not a port")
    return Address(host, int(port))
