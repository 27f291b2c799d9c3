"""What answers at an address and is no server: always an error of the client's own, which says what would be right."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

import millrace
from millrace.client.testing import TestServer
from millrace.model.errors import InvalidArgumentError
from tests.support.tables import table
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio

SILENCE_S = 0.5
"""How long one that says nothing is waited for; all others answer, however late on a busy machine."""
RIGHT = "is this the data port of a Millrace server"


@asynccontextmanager
async def peer(talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]) -> AsyncIterator[str]:
    """Listen, and let a function do what it likes with each connection; yield the address."""
    writers = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        talk(reader, writer)

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        server.close()
        for writer in writers:
            writer.close()


async def refused(address: str, *, tls: bool = False, timeout_s: float = PATIENCE_S) -> millrace.ServerUnreachableError:
    options = millrace.ClientOptions(connect_timeout_s=timeout_s)
    with pytest.raises(millrace.ServerUnreachableError, match="no server could be reached at") as caught:
        _ = await millrace.connect(address, options=options, tls=tls)
    assert isinstance(caught.value, ConnectionError)
    assert (caught.value.address, caught.value.retriable) == (address, True)
    return caught.value


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it speaks HTTP, not Millrace's protocol; " + RIGHT),
        (b"\x15\x03\x03\x00\x02\x02\x0a", "it speaks TLS, not Millrace's protocol; " + RIGHT),
        (b"SSH-2.0-OpenSSH_9.0\r\n", "the server broke the protocol: .*; " + RIGHT),
        (b"", "no answer within 0.5 s; " + RIGHT),
    ],
)
async def test_a_server_of_another_protocol_is_named(said: bytes, told: str) -> None:
    async with peer(lambda _, writer: writer.write(said)) as address:
        error = await refused(address, timeout_s=PATIENCE_S if said else SILENCE_S)

    with pytest.raises(millrace.ServerUnreachableError, match=told):
        raise error


async def test_who_hangs_up_is_asked_what_it_is() -> None:
    async with peer(lambda _, writer: writer.close()) as address:
        assert RIGHT in str(await refused(address))


async def test_nobody_listens() -> None:
    async with peer(lambda _, writer: writer.close()) as address:
        pass
    error = await refused(address)

    assert RIGHT not in str(error)
    assert isinstance(error.__cause__, ConnectionRefusedError)


async def test_a_name_that_nobody_knows() -> None:
    assert "not known" in str(await refused("no-such-host.invalid:9240"))


async def test_tls_to_a_server_without_it(server: TestServer) -> None:
    assert "does it speak TLS?" in str(await refused(server.address, tls=True))


async def test_tls_to_a_peer_that_answers_in_text() -> None:
    async with peer(lambda _, writer: writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as address:
        error = await refused(address, tls=True)

    assert "does it speak TLS?" in str(error)
    assert isinstance(error.__cause__, ssl.SSLError)


@table("address", ["a" * 64 + ".example", "a..b", "\0", "\udc80", "http://h:1", "h:70000", "h:0", "", 9240])
async def test_what_is_no_address(address: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"address|host name"):
        _ = millrace.connect(address)


@pytest.mark.parametrize("token", ["secret\udc80", "secret" * 2000, b"secret", None])
async def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(InvalidArgumentError, match="token") as caught:
        millrace.ClientOptions(token=token)

    assert "secret" not in str(caught.value)


async def test_tls_is_a_choice_or_a_context() -> None:
    with pytest.raises(InvalidArgumentError, match=r"ssl\.SSLContext, not str"):
        millrace.ClientOptions(tls="yes")  # type: ignore[arg-type]  # wrong on purpose
