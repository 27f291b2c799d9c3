"""The console's JSON over real sockets: what it says, who may ask, and what a request may cost."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millrace
from millrace.model.address import Address
from millrace.server.app import Server
from millrace.server.console.access import Access
from millrace.server.console.api import EVENT_REQUESTS_COUNT_MAX, REQUESTS_COUNT_MAX, Api
from millrace.server.console.listener import HttpListener, HttpRequest, HttpResponse
from millrace.server.front.options import FrontOptions
from tests.support.examples import examples
from tests.support.feed_peer import FeedPeer
from tests.support.folders import tmp_path
from tests.support.servers import server_options
from tests.support.waiting import until

__all__ = ["tmp_path"]

STREAM = "shop/orders"
HOSTILE = '<script>alert("1")</script>'


class Shop:
    """A server with a console, a client of it, and a stream of one segment."""

    def __init__(self, server: Server, client: millrace.Client) -> None:
        self.server = server
        self.client = client

    async def ask(self, path: str, *, status: int = 200, **query: Any) -> dict[str, Any]:
        """Return the JSON of an answer of a status."""
        target = f"/api/v1/{path}" + (f"?{urlencode(query)}" if query else "")
        async with await FeedPeer.ask(self.server.console_address, target) as peer:
            content: dict[str, Any] = json.loads(await peer.body())
            assert (peer.status, peer.headers["content-type"]) == (status, "application/json"), content
            assert peer.headers["cache-control"] == "no-store"
            assert peer.headers["x-content-type-options"] == "nosniff"
            return content

    async def write(self, *values: bytes, key: str = "k") -> None:
        async with self.client.writer(STREAM) as writer:
            for value in values:
                await writer.write(value, key=key)


@asynccontextmanager
async def shop(folder: Path, *, token: str = "") -> AsyncIterator[Shop]:
    options = server_options(folder, console=Address("127.0.0.1", 0), front=FrontOptions(token=token))
    async with Server(options) as server, millrace.connect(server.address, token=token) as client:
        await client.create_stream(STREAM)
        yield Shop(server, client)


async def send(address: str, path: str) -> asyncio.StreamWriter:
    """Send a request, and wait for nothing; the caller closes."""
    where = Address.parse(address, default_port=0)
    _, writer = await asyncio.open_connection(where.host, where.port)
    writer.write(f"GET /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    await writer.drain()
    return writer


@pytest.mark.asyncio
async def test_streams_are_found_by_their_names_some_at_a_time(tmp_path: Path) -> None:
    async with shop(tmp_path) as running:
        for number in range(5):
            await running.client.create_stream(f"plant/sensor-{number}", millrace.StreamConfig(tags=("hot",)))
        await running.write(b"a", b"b")

        async def found(**query: Any) -> tuple[list[str], str | None]:
            content = await running.ask("streams", **query)
            return [row["stream"] for row in content["streams"]], content["resume_after"]

        everything = [*(f"plant/sensor-{number}" for number in range(5)), STREAM]
        assert await found() == (everything, None)
        assert await found(limit=2) == (everything[:2], everything[1])
        assert await found(limit=2, after=everything[1]) == (everything[2:4], everything[3])
        assert await found(limit=2, after=everything[3]) == (everything[4:], None)
        assert await found(prefix="plant/", limit=5) == (everything[:5], None)
        assert await found(contains="R-3") == (["plant/sensor-3"], None)
        assert await found(contains="SENSOR", limit=1) == (everything[:1], everything[0])
        assert await found(tag="hot", prefix="plant/sensor-4") == (["plant/sensor-4"], None)
        assert await found(tag="cold") == await found(contains=HOSTILE) == ([], None)
        (row,) = (await running.ask("streams", prefix="shop/"))["streams"]
        info = await running.client.stream_info(STREAM)
        assert (row["event_count"], row["size_bytes"], row["open_segment_count"]) == (2, info.size_bytes, 1)


@pytest.mark.asyncio
async def test_a_stream_that_was_scaled_is_rectangles(tmp_path: Path) -> None:
    async with shop(tmp_path) as running:
        await running.write(b"a")
        (first,) = (await running.client.stream_info(STREAM)).segments
        await running.client.scale_stream(STREAM, seal=[first.segment_id], ranges=[(0, 0.25), (0.25, 1)])
        await running.write(b"b")

        content = await running.ask(f"streams/{STREAM}")
        assert (content["epoch"], content["event_count"], content["sealed"]) == (1, 2, False)
        assert [(each["low"], each["high"]) for each in content["segments"]] == [(0, 0.25), (0.25, 1)]
        assert sum(each["event_count"] for each in content["segments"]) == 1
        assert (content["scaling"], content["retention"]) == ({"kind": "fixed", "segment_count": 1}, None)

        over_time = await running.ask(f"streams/{STREAM}/segments")
        whole, low, high = over_time["segments"]
        history = await running.client.stream_history(STREAM)
        assert (whole["segment_id"], whole["low"], whole["high"]) == (first.segment_id, 0, 1)
        assert (whole["created_us"], whole["sealed_us"]) == (history[0].started_us, history[1].started_us)
        assert whole["event_count"] == 1
        assert [each["sealed_us"] for each in (low, high)] == [None, None]
        assert [each["created_us"] for each in (low, high)] == [history[1].started_us] * 2
        (scaling,) = over_time["scalings"]
        assert (scaling["sealed_ids"], scaling["cause"]) == ([first.segment_id], history[1].cause)
        assert over_time["omitted_segment_count"] == 0


@pytest.mark.asyncio
async def test_an_explanation_is_that_of_the_client(tmp_path: Path) -> None:
    async with shop(tmp_path) as running:
        content = await running.ask(f"streams/{STREAM}/explain")
        assert content == await running.client.explain_stream(STREAM)


@pytest.mark.asyncio
async def test_events_are_shown_from_a_place_on_some_at_a_time(tmp_path: Path) -> None:
    async with shop(tmp_path) as running:
        await running.write(b"a", b"b", b"c")
        await running.client.bookmarks(STREAM).save("here")
        await running.write(b"d", key=HOSTILE)

        async def values(**query: Any) -> list[str]:
            return [each["value"] for each in (await running.ask(f"streams/{STREAM}/events", **query))["events"]]

        assert await values() == ["a", "b", "c", "d"]
        assert await values(**{"from": "bookmark:here"}) == ["d"]
        assert await values(**{"from": "1h ago", "key": HOSTILE}) == ["d"]
        assert await values(**{"from": "tail"}) == []
        page = await running.ask(f"streams/{STREAM}/events", limit=3)
        assert ([each["value"] for each in page["events"]], page["at_end"]) == (["a", "b", "c"], False)
        page = await running.ask(f"streams/{STREAM}/events", limit=3, **{"from": page["next"]})
        assert ([each["value"] for each in page["events"]], page["at_end"]) == (["d"], True)
        assert page["events"][0]["key"] == HOSTILE
        assert page["next"] == str(await running.client.stream_cut(STREAM))


@pytest.mark.asyncio
async def test_a_place_in_the_middle_of_a_block_is_where_the_next_page_begins(tmp_path: Path) -> None:
    async with shop(tmp_path) as running:
        async with running.client.writer(STREAM) as writer:
            await writer.write_many([b"a", b"b", b"c"], key="k")
        page = await running.ask(f"streams/{STREAM}/events", limit=1)
        page = await running.ask(f"streams/{STREAM}/events", limit=1, **{"from": page["next"]})
        assert [each["value"] for each in page["events"]] == ["b"]


@pytest.mark.asyncio
async def test_a_place_that_was_truncated_is_gone(tmp_path: Path) -> None:
    async with shop(tmp_path) as running:
        head = str(await running.client.stream_cut(STREAM))
        await running.write(b"a")
        await running.client.truncate_stream(STREAM, millrace.TAIL)
        assert "truncated" in (await running.ask(f"streams/{STREAM}/events", status=410, **{"from": head}))["error"]


@pytest.mark.asyncio
async def test_cursors_have_a_lag_and_bookmarks_a_time(tmp_path: Path) -> None:
    async with shop(tmp_path) as running:
        await running.write(b"a")
        await running.client.cursors(STREAM).set(HOSTILE, millrace.TAIL)
        await running.client.bookmarks(STREAM).save("here")
        await running.write(b"b", b"c")
        content = await running.ask(f"streams/{STREAM}/cuts")
        (cursor,), (bookmark,) = content["cursors"], content["bookmarks"]
        assert (cursor["name"], cursor["unread_events"], bookmark["name"]) == (HOSTILE, 2, "here")
        (explained,) = (await running.client.explain_stream(STREAM))["cursors"]
        assert cursor["unread_bytes"] == explained["unread_bytes"] > 0
        assert bookmark["saved_us"] <= content["now_us"]


@pytest.mark.asyncio
async def test_transactions_that_are_open_are_listed_some_at_a_time(tmp_path: Path) -> None:
    async with shop(tmp_path) as running:
        for number in range(3):
            await running.client.begin_transaction(STREAM, name=f"{HOSTILE}{number}")
        content = await running.ask("transactions", limit=2)
        names = [each["name"] for each in content["transactions"]]
        assert (names, content["transactions"][0]["state"]) == ([f"{HOSTILE}0", f"{HOSTILE}1"], "open")
        content = await running.ask("transactions", limit=2, after=content["resume_after"])
        assert [each["name"] for each in content["transactions"]] == [f"{HOSTILE}2"]
        assert content["resume_after"] is None


@pytest.mark.asyncio
async def test_the_server_tells_its_health_and_all_figures(tmp_path: Path) -> None:
    async with shop(tmp_path) as running:
        await running.write(b"a")
        content = await running.ask("server")
        assert (content["healthy"], content["problem"]) == (True, "")
        assert content["statistics"]["front"]["appends_total"] == 1
        assert content["statistics"]["wal"]["batch_count"] >= 1


WRONG: Final = (
    ("streams/shop/returns", 404, "stream list"),
    ("streams/shop/returns/segments", 404, "stream list"),
    ("streams/shop/returns/cuts", 404, "stream list"),
    ("streams/shop/returns/explain", 404, "stream list"),
    ("streams/shop/returns/events", 404, "stream list"),
    ("streams/shop", 404, "SCOPE/STREAM"),
    ("streams/shop/orders/delete", 404, "SCOPE/STREAM/explain"),
    ("", 404, "/api/v1/streams"),
    ("server/now", 404, "/api/v1/server"),
    ("streams/shop/%3Cscript%3E", 400, "letters"),
    ("streams/shop/..%00", 400, "letters"),
    ("streams/shop/a%2fb", 400, "scope/name"),
    ("streams//", 400, "letters"),
    ("streams/%ff/%fe", 400, "letters"),
    (f"streams/shop/{'a' * 5000}", 400, ""),
    ("streams?limit=0", 400, "from 1 to 200"),
    ("streams?limit=201", 400, "from 1 to 200"),
    ("streams?limit=-1", 400, "from 1 to 200"),
    (f"streams?limit={'9' * 5000}", 400, "from 1 to 200"),
    ("streams?limit=%C2%B2", 400, "from 1 to 200"),
    ("streams?limit=1e9", 400, "from 1 to 200"),
    ("streams?limit=", 400, "from 1 to 200"),
    ("streams?limit=1&limit=2", 400, "once"),
    ("streams?since=1", 400, "prefix, contains, tag, after, limit"),
    ("streams?contains=%ff", 400, "UTF-8"),
    ("server?verbose=1", 400, "it takes none"),
    (f"transactions?after={10**18 * 99}", 400, "from 0"),
    ("streams/shop/orders/events?from=yesterday", 400, "bookmark:NAME"),
    ("streams/shop/orders/events?from=bookmark:none", 400, "no bookmark 'none'"),
    ("streams/shop/orders/events?from=shop/orders@18446744073709551615:0.0", 400, "18446744073709551615"),
    (f"streams/shop/orders/events?from=shop/orders@1:{'9' * 30}.0", 400, ""),
    ("streams/shop/orders/events?limit=501", 400, "from 1 to 500"),
    ("streams/shop/orders/events?from=9999999999999999999", 400, ""),
    (f"streams/shop/orders/events?from={'9' * 300}d%20ago", 400, ""),
    ("streams/shop/orders/events?from=99999999999999d%20ago", 400, ""),
    (f"streams?prefix={'a' * 100_000}", 400, ""),
    (f"streams?after={'a' * 100_000}", 400, ""),
    (f"streams?tag={'a' * 100_000}", 400, ""),
)


@pytest.mark.asyncio
async def test_a_request_that_is_wrong_is_told_what_would_be_right(tmp_path: Path) -> None:
    async with shop(tmp_path) as running:
        for target, status, told in WRONG:
            assert told in (await running.ask(target, status=status))["error"], target


@given(path=st.text(max_size=60), query=st.text(max_size=60))
@settings(max_examples=examples(200), deadline=None)
def test_whatever_is_asked_gets_an_answer(path: str, query: str) -> None:
    """Nothing listens at the address, so what is right cannot be answered now; what is wrong is told."""
    api = Api(address=lambda: "127.0.0.1:1", access=Access(token="", host="127.0.0.1"), statistics=dict, health=str)
    request = HttpRequest(method="GET", path=f"/api/v1/{path}", query=query, headers={})
    response = asyncio.run(api.answer(request))
    assert response.status in (200, 400, 404, 503)
    assert ("error" in json.loads(response.body)) == (response.status != 200)


@pytest.mark.asyncio
async def test_nothing_can_be_changed(tmp_path: Path) -> None:
    async with shop(tmp_path) as running:
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            address = running.server.console_address
            async with await FeedPeer.ask(address, f"/api/v1/streams/{STREAM}", method=method) as peer:
                assert (peer.status, peer.headers["allow"]) == (405, "GET, HEAD")
                assert "access-control-allow-origin" not in peer.headers


@pytest.mark.asyncio
async def test_a_server_with_a_token_asks_for_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Behaviour 53: nothing is told without it, not even what there is; the page and the probes have no data."""
    caplog.set_level(logging.DEBUG)
    async with shop(tmp_path, token="s3crät") as running:
        address = running.server.console_address
        for path in ("server", "streams", f"streams/{STREAM}", "streams/no/such", "transactions", "nothing"):
            for query, headers in (
                ("", {}),
                ("?token=s3cr%C3%A4t", {}),
                ("", {"Authorization": "Basic s3crät"}),
                ("", {"Authorization": "Bearer"}),
            ):
                async with await FeedPeer.ask(address, f"/api/v1/{path}{query}", headers=headers) as peer:
                    assert (peer.status, peer.headers["www-authenticate"]) == (401, "Bearer")
                    assert await peer.error() == (
                        "this server asks for its token: send the header Authorization: Bearer TOKEN"
                    )
        async with await FeedPeer.ask(address, "/api/v1/streams", headers={"Authorization": "Bearer s3cr"}) as peer:
            assert peer.status == 401
            assert "the token is not accepted" in await peer.error()
        for path in ("server", "streams", f"streams/{STREAM}"):
            async with await FeedPeer.ask(
                address, f"/api/v1/{path}", headers={"Authorization": "Bearer s3crät"}
            ) as peer:
                assert (peer.status, "error" in json.loads(await peer.body())) == (200, False)
        for path in ("/", "/static/main.js", "/livez", "/readyz", "/health", "/metrics"):
            async with await FeedPeer.ask(address, path) as peer:
                assert (peer.status, b"s3cr" in await peer.body()) == (200, False)
    assert "s3cr" not in caplog.text


@pytest.mark.asyncio
async def test_peers_that_leave_before_their_answer_hold_no_place(tmp_path: Path) -> None:
    """Behaviour 8: more of them than are answered at once; then the rest is answered as before."""
    async with shop(tmp_path) as running:
        for _ in range(2 * REQUESTS_COUNT_MAX):
            writer = await send(running.server.console_address, "streams")
            writer.transport.abort()
        connections = running.server.statistics
        await until(lambda: connections()["server"].connections <= 2)  # those of the client of this test
        assert (await running.ask("streams"))["streams"][0]["stream"] == STREAM


@pytest.mark.slow
@pytest.mark.asyncio
async def test_so_many_are_answered_at_once_and_the_server_speaks_of_itself_meanwhile() -> None:
    """Behaviour 8: a data port that accepts and says nothing; a bound that is met is told, with when to come back."""
    connected = ended = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connected, ended
        connected += 1
        await reader.read(-1)
        writer.transport.abort()
        ended += 1

    data_port = await asyncio.start_server(silent, "127.0.0.1", 0)
    host, port = data_port.sockets[0].getsockname()
    access = Access(token="", host=host)
    api = Api(address=lambda: f"{host}:{port}", access=access, statistics=dict, health=lambda: "it is stuck")

    @asynccontextmanager
    async def respond(request: HttpRequest) -> AsyncIterator[HttpResponse]:
        yield await api.answer(request)

    listener = HttpListener(host="127.0.0.1", port=0, respond=respond)
    address = f"127.0.0.1:{listener.port}"
    async with data_port:
        waiting = [await send(address, f"streams/{STREAM}/events") for _ in range(EVENT_REQUESTS_COUNT_MAX)]
        await until(lambda: connected == EVENT_REQUESTS_COUNT_MAX)
        async with await FeedPeer.ask(address, f"/api/v1/streams/{STREAM}/events") as peer:
            assert (peer.status, peer.headers["retry-after"]) == (HTTPStatus.SERVICE_UNAVAILABLE, "5")
            assert f"{EVENT_REQUESTS_COUNT_MAX} requests for events" in await peer.error()
        waiting += [await send(address, "transactions") for _ in range(REQUESTS_COUNT_MAX - EVENT_REQUESTS_COUNT_MAX)]
        await until(lambda: connected == REQUESTS_COUNT_MAX)
        async with await FeedPeer.ask(address, "/api/v1/streams") as peer:
            assert (peer.status, peer.headers["retry-after"]) == (HTTPStatus.SERVICE_UNAVAILABLE, "5")
            assert f"{REQUESTS_COUNT_MAX} requests are in progress" in await peer.error()
        async with await FeedPeer.ask(address, "/api/v1/server") as peer:
            assert json.loads(await peer.body())["problem"] == "it is stuck"
        for writer in waiting:
            writer.transport.abort()
        await asyncio.to_thread(listener.close)
        await until(lambda: ended == connected)
