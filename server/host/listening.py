"""Addresses that a server listens on, and what is said of one that it cannot have."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from millrace.model.address import Address
from millrace.server.errors import ConfigurationError


async def bind(address: Address, protocol: Callable[[], asyncio.BaseProtocol]) -> asyncio.Server:
    """Return a server that has an address, and nobody can connect to yet.

    Raises:
        ConfigurationError: somebody else has the address, or it is none of this machine.
    """
    with listening(address):
        return await asyncio.get_running_loop().create_server(
            protocol, address.host, address.port, backlog=1024, start_serving=False
        )


@contextlib.contextmanager
def listening(address: Address) -> Iterator[None]:
    """Say which address could not be listened on."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {address}: {error.strerror or error}") from error
