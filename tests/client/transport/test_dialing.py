"""Behaviour of a client with several addresses: over real sockets, and the order in which they are tried."""

import pytest

import millrace
from millrace.client.errors import AuthenticationError, ServerUnreachableError, ThrottledError
from millrace.client.options import ClientOptions, parse_addresses
from millrace.client.testing import SETTINGS_SMALL, server
from millrace.client.transport.connection import Connection
from millrace.client.transport.dialing import Dialer
from millrace.model.address import Address
from millrace.model.errors import MillraceError
from tests.support.model_server import ModelServer

pytestmark = pytest.mark.asyncio

BOTH = parse_addresses("a:1,b:2")


class Hosts:
    """Hosts by name, with what meets who connects to each; one that is not there answers."""

    def __init__(self, **down: MillraceError) -> None:
        self.down = down
        self.asked: list[str] = []
        self._model = ModelServer()

    async def connect(self, address: Address, options: ClientOptions, session_id: bytes) -> Connection:
        """Fills the seam of `Dialer`."""
        self.asked.append(address.host)
        if error := self.down.get(address.host):
            raise error
        return await self._model.connect(parse_addresses(str(address)), options, session_id)


def away(address: str) -> ServerUnreachableError:
    return ServerUnreachableError(address, "refused")


async def test_the_address_that_served_last_is_tried_first() -> None:
    hosts = Hosts(a=away("a:1"))
    dialer = Dialer(hosts.connect)

    await dialer.dial(BOTH, ClientOptions(), bytes(16))
    assert hosts.asked == ["a", "b"]
    await dialer.dial(BOTH, ClientOptions(), bytes(16))
    assert hosts.asked == ["a", "b", "b"]

    hosts.down = {"b": away("b:2")}
    await dialer.dial(BOTH, ClientOptions(), bytes(16))
    assert hosts.asked == ["a", "b", "b", "b", "a"]


async def test_each_address_is_named_with_its_reason() -> None:
    hosts = Hosts(a=away("a:1"), b=ServerUnreachableError("b:2", "no answer within 5 s"))

    with pytest.raises(ServerUnreachableError) as caught:
        await Dialer(hosts.connect).dial(BOTH, ClientOptions(), bytes(16))

    assert str(caught.value) == "no server could be reached: a:1: refused; b:2: no answer within 5 s"
    assert caught.value.address == "a:1,b:2"


async def test_one_address_fails_as_the_connection_did() -> None:
    error = away("a:1")

    with pytest.raises(ServerUnreachableError) as caught:
        await Dialer(Hosts(a=error).connect).dial(parse_addresses("a:1"), ClientOptions(), bytes(16))

    assert caught.value is error
    assert str(error) == "no server could be reached at a:1: refused"


async def test_a_refusal_for_good_is_an_answer_and_one_for_now_is_not() -> None:
    hosts = Hosts(a=AuthenticationError("the token is wrong"))
    with pytest.raises(AuthenticationError):
        await Dialer(hosts.connect).dial(BOTH, ClientOptions(), bytes(16))
    assert hosts.asked == ["a"]

    hosts = Hosts(a=ThrottledError("too many connections"))
    dialer = Dialer(hosts.connect)
    await dialer.dial(BOTH, ClientOptions(), bytes(16))
    hosts.down["b"] = away("b:2")
    with pytest.raises(ThrottledError):
        await dialer.dial(BOTH, ClientOptions(), bytes(16))


async def test_both_connections_of_a_client_find_the_server_that_is_up() -> None:
    with server(settings=SETTINGS_SMALL) as up:
        async with millrace.connect(f"127.0.0.1:1,{up.address}") as client:
            await client.create_stream("shop/orders")
            async with client.writer("shop/orders") as writer:
                await writer.write(b"one")
            async with client.reader("shop/orders", end=millrace.TAIL) as reader:
                assert [event.value async for event in reader] == [b"one"]


async def test_a_writer_continues_at_the_second_server_when_the_first_dies() -> None:
    with server(settings=SETTINGS_SMALL) as first, server(settings=SETTINGS_SMALL) as second:
        async with millrace.connect(second.address) as client:
            await client.create_stream("shop/orders")
        async with millrace.connect(f"{first.address},{second.address}") as client:
            await client.create_stream("shop/orders")
            first.kill()
            async with client.writer("shop/orders", writer_id="till") as writer:
                await writer.write(b"two")
            async with client.reader("shop/orders", end=millrace.TAIL) as reader:
                assert [event.value async for event in reader] == [b"two"]
            first.start()
            assert await client.ping() > 0
            assert client.statistics().writes.connects == 2, "it stays with the one that serves"


async def test_nothing_serves_at_any_address() -> None:
    with pytest.raises(ServerUnreachableError, match=r"reached: 127\.0\.0\.1:1: .*; 127\.0\.0\.1:2: "):
        async with millrace.connect("127.0.0.1:1,127.0.0.1:2"):
            pass
