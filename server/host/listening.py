"""Binding and listening on addresses, and the errors for an address that is not available."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import Final

from millrace.model.address import Address
from millrace.server.errors import ConfigurationError

BACKLOG_COUNT: Final = 1024


async def bind(address: Address, protocol: Callable[[], asyncio.BaseProtocol]) -> asyncio.Server:
    """Return a server that is bound to an address and does not accept connections yet.

    Raises:
        ConfigurationError: the address is in use, or does not belong to this machine.
    """
    loop = asyncio.get_running_loop()
    with listening(address):
        if is_for_both_families(address.host):
            bound = _bound_for_both_families(address)
            return await loop.create_server(protocol, sock=bound, backlog=BACKLOG_COUNT, start_serving=False)
        return await loop.create_server(
            protocol, address.host, address.port, backlog=BACKLOG_COUNT, start_serving=False
        )


def is_for_both_families(host: str) -> bool:
    """Return whether a host is `::` on a system where such a socket also accepts IPv4."""
    return host == "::" and socket.has_dualstack_ipv6()


def _bound_for_both_families(address: Address) -> socket.socket:
    """Return a bound socket. An event loop would make one for IPv6 alone."""
    bound = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind((address.host, address.port))
    except BaseException:
        bound.close()
        raise
    return bound


async def serve(server: asyncio.Server) -> None:
    """Accept connections on a server that `bind` returned.

    Raises:
        ConfigurationError: another process listens on the address. Binding does not reserve it: the system lets several
            sockets bind, and the first to listen keeps the address.
    """
    for bound in server.sockets:
        with listening(Address(*bound.getsockname()[:2])), socket.socket(fileno=os.dup(bound.fileno())) as same:
            same.listen(BACKLOG_COUNT)  # uvloop closes the socket instead of raising this error
    await server.start_serving()


@contextlib.contextmanager
def listening(address: Address) -> Iterator[None]:
    """Raise ConfigurationError with the address if listening on it fails."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {address}: {error.strerror or error}") from error
