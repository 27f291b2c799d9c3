"""Addresses that a server listens on."""

import asyncio
import socket

import pytest

from millrace.model.address import Address
from millrace.server.errors import ConfigurationError
from millrace.server.host.listening import bind, listening, serve


@pytest.mark.asyncio
async def test_an_address_that_somebody_else_has_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as first:
        taken = Address(*first.getsockname())
        with pytest.raises(ConfigurationError, match=f"cannot listen on {taken}: "):
            await bind(taken, asyncio.Protocol)


@pytest.mark.both_loops
@pytest.mark.asyncio
async def test_of_two_that_have_an_address_the_first_to_serve_keeps_it() -> None:
    first = await bind(Address("127.0.0.1", 0), asyncio.Protocol)
    address = Address(*first.sockets[0].getsockname())
    async with first, await bind(address, asyncio.Protocol) as second:
        await serve(second)
        with pytest.raises(ConfigurationError, match=f"cannot listen on {address}: Address already in use"):
            await serve(first)
        _, writer = await asyncio.open_connection(address.host, address.port)
        writer.close()


def test_the_reason_of_the_system_is_told() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot listen on 127\.0\.0\.1:1: Permission denied"):
        with listening(Address("127.0.0.1", 1)):
            raise PermissionError(13, "Permission denied")


@pytest.mark.both_loops
@pytest.mark.asyncio
@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="the machine has no IPv6, or not both in one")
async def test_all_addresses_are_those_of_ipv4_too() -> None:
    """`[::]:port`: an event loop would take IPv6 alone."""
    server = await bind(Address("::", 0), asyncio.Protocol)
    async with server:
        await serve(server)
        port = Address(*server.sockets[0].getsockname()[:2]).port
        for host in ("127.0.0.1", "::1"):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
        with pytest.raises(ConfigurationError, match=r"cannot listen on \[::\]:"):
            await serve(await bind(Address("::", port), asyncio.Protocol))
