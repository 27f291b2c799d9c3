"""Who may ask the console, over real HTTP."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

import millrace
from millrace.model.address import Address
from millrace.server.app import Server
from millrace.server.console.access import Access
from millrace.server.console.listener import CONNECTIONS_COUNT_MAX, HttpRequest
from millrace.server.console.requests import RefusedError
from millrace.server.front.options import FrontOptions
from millrace.server.host.tokens import WRONG_TOKEN_DELAY_S
from tests.support.feed_peer import FeedPeer
from tests.support.folders import tmp_path
from tests.support.servers import server_options
from tests.support.tables import table
from tests.support.waiting import PATIENCE_S

__all__ = ["tmp_path"]

TOKEN = "s3crät"
STREAM = "shop/secret-plan"
PATHS = ("/", "/metrics", "/readyz", "/api/v1/server", "/api/v1/streams", f"/streams/{STREAM}/events")
GUARDED = ("/api/v1/server", "/metrics", f"/streams/{STREAM}/events")


@asynccontextmanager
async def console(folder: Path, *, token: str = "") -> AsyncIterator[str]:
    """The address of the console of a server with one stream and one cursor, which lags."""
    options = server_options(folder, console=Address("127.0.0.1", 0), front=FrontOptions(token=token))
    async with Server(options) as server, millrace.connect(server.address, token=token) as client:
        await client.create_stream(STREAM, cursors=["secret-consumer"])
        async with client.writer(STREAM) as writer:
            await writer.write(b"x")
        yield server.console_address


async def answer(address: str, path: str, **headers: str) -> tuple[int, str]:
    async with await FeedPeer.ask(address, path, headers=headers) as peer:
        return peer.status, "" if peer.status == 200 and "/events" in path else (await peer.body()).decode()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "name", ["evil.example", "evil.example:9241", "localhost.evil.example", "10.0.0.1:80", "[::", ""]
)
async def test_a_page_whose_name_leads_to_this_machine_reads_nothing(tmp_path: Path, name: str) -> None:
    """DNS rebinding: to a browser the console is then of the same origin as the page."""
    async with console(tmp_path) as address:
        for path in PATHS:
            status, text = await answer(address, path, Host=name)
            assert (status, "MILLRACE_FRONT_TOKEN" in text) == (421, True), path


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "name",
    [
        "localhost",
        "localhost:9241",
        "localhost.:80",
        "dev.localhost:80",
        "127.0.0.1:9241",
        "127.0.0.2",
        "[::1]:9241",
        "[::ffff:127.0.0.1]",
    ],
)
async def test_this_machine_is_answered_under_each_of_its_names(tmp_path: Path, name: str) -> None:
    async with console(tmp_path) as address:
        for path in PATHS:
            assert (await answer(address, path, Host=name))[0] == 200, path


@table(("token", "host"), [(TOKEN, "127.0.0.1"), ("", "0.0.0.0"), ("", "192.0.2.1")])
def test_with_a_token_or_for_other_machines_the_name_is_theirs(token: str, host: str) -> None:
    Access(token=token, host=host).check_name(
        HttpRequest(method="GET", path="/", query="", headers={"host": "millrace.example"})
    )


def test_who_sends_no_name_is_no_browser() -> None:
    Access(token="", host="localhost").check_name(HttpRequest(method="GET", path="/", query="", headers={}))
    with pytest.raises(RefusedError):
        Access(token="", host="::1").check_name(HttpRequest(method="GET", path="/", query="", headers={"host": "x"}))


@pytest.mark.asyncio
async def test_wrong_tokens_do_not_keep_the_right_one_out(tmp_path: Path) -> None:
    """Behaviours 53, 104: wrong tokens are answered slowly, the right one at once, also from the same address."""
    async with console(tmp_path, token=TOKEN) as address:
        with ExitStack() as stack:
            await asyncio.to_thread(guess, address, stack)
            for path in GUARDED:
                assert (await answer(address, path, Authorization=f"Bearer {TOKEN}"))[0] == 200
        started_s = time.monotonic()
        assert (await answer(address, GUARDED[0], Authorization="Bearer guess"))[0] == 401
        assert time.monotonic() - started_s >= WRONG_TOKEN_DELAY_S


def guess(address: str, stack: ExitStack) -> None:
    """Send more wrong tokens than the console has connections, and wait for no answer."""
    where = Address.parse(address, default_port=0)
    for number in range(2 * CONNECTIONS_COUNT_MAX):
        peer = stack.enter_context(socket.create_connection((where.host, where.port), timeout=PATIENCE_S))
        path, token = GUARDED[number % len(GUARDED)], f"Bearer guess-{number}"
        peer.sendall(f"GET {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: {token}\r\n\r\n".encode())


@pytest.mark.asyncio
async def test_names_need_the_token_in_the_metrics_too(tmp_path: Path) -> None:
    """Behaviour 53: without it, not even what there is."""
    async with console(tmp_path, token=TOKEN) as address:
        status, text = await answer(address, "/metrics")
        assert (status, "secret" in text) == (200, False)
        assert 'millrace_cursor_lag_bytes{cursor="(others)",stream="(others)"}' in text
        assert "millrace_stream_written" not in text
        status, text = await answer(address, "/metrics", Authorization=f"Bearer {TOKEN}")
        assert (status, f'stream="{STREAM}"' in text, 'cursor="secret-consumer"' in text) == (200, True, True)
        assert (await answer(address, "/metrics", Authorization="Bearer wrong"))[0] == 401
        for others in ("Basic dTpw", "Bearer"):  # of a proxy, say
            status, text = await answer(address, "/metrics", Authorization=others)
            assert (status, "secret" in text) == (200, False)


def test_a_token_may_end_in_what_would_be_a_space_in_latin_1() -> None:
    sent = "Bearer voilà ".encode().decode("latin-1")
    Access(token="voilà", host="127.0.0.1").check_token(
        HttpRequest(method="GET", path="/", query="", headers={"authorization": sent})
    )
