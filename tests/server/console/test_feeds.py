"""Feeds over real sockets: who gets one, what one costs, and how it ends."""

import asyncio
import gc
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

import millrace
from millrace.client.read.block_stream import BlockStream
from millrace.model.address import Address
from millrace.model.event import Event
from millrace.server.app import Server
from millrace.server.console import feed_places
from millrace.server.console.counters import FeedCounters
from millrace.server.console.options import WINDOW_BYTES_MIN, FeedOptions
from millrace.server.front.options import FrontOptions
from millrace.wire.limits import MIB
from tests.support.feed_peer import FeedPeer
from tests.support.folders import tmp_path
from tests.support.servers import SMALL_WAL, server_options
from tests.support.waiting import PATIENCE_S, until

__all__ = ["tmp_path"]

STREAM = "shop/orders"
PATH = f"/streams/{STREAM}/events"


class Shop:
    """A server with a console, a client of it, and a stream of one segment."""

    def __init__(self, server: Server, client: millrace.Client) -> None:
        self.server = server
        self.client = client

    async def ask(self, query: str = "", *, path: str = PATH, **arguments: Any) -> FeedPeer:
        target = path + (f"?{query}" if query else "")
        return await FeedPeer.ask(self.server.console_address, target, **arguments)

    async def write(self, *values: bytes) -> None:
        async with self.client.writer(STREAM) as writer:
            for value in values:
                await writer.write(value, key="k")

    @property
    def counters(self) -> FeedCounters:
        counters: FeedCounters = self.server.statistics()["feed"]
        return counters


@asynccontextmanager
async def shop(folder: Path, **parts: Any) -> AsyncIterator[Shop]:
    token = parts.get("front", FrontOptions()).token
    options = server_options(folder, console=Address("127.0.0.1", 0), **parts)
    async with Server(options) as server, millrace.connect(server.address, token=token) as client:
        await client.create_stream(STREAM)
        yield Shop(server, client)


def values_of(messages: list[Any]) -> list[str]:
    return [message.content()["value"] for message in messages]


@pytest.mark.asyncio
async def test_a_feed_is_what_an_event_source_expects(tmp_path: Path) -> None:
    async with shop(tmp_path) as running:
        await running.write(b"a", b"b")
        async with await running.ask("from=head") as peer:
            assert peer.status == 200
            assert peer.headers["content-type"] == "text/event-stream"
            assert peer.headers["cache-control"] == "no-store"
            assert "access-control-allow-origin" not in peer.headers
            assert values_of(await peer.messages(2)) == ["a", "b"]
            await running.write(b"c")
            assert values_of(await peer.messages(1)) == ["c"]
        assert running.counters.events_total == 3
        assert running.counters.opened_total == 1


@pytest.mark.asyncio
async def test_where_it_starts_is_up_to_the_query_and_to_the_place_of_one_that_comes_back(tmp_path: Path) -> None:
    async with shop(tmp_path) as running:
        await running.write(b"a", b"b")
        await running.client.bookmarks(STREAM).save("here", millrace.TAIL)
        await running.write(b"c")
        cut = await running.client.stream_cut(STREAM, after_events=1)
        for query, expected in (
            ("from=head", "a"),
            (f"from={quote(str(cut))}", "b"),
            ("from=bookmark:here", "c"),
            ("from=1h%20ago", "a"),
            ("from=2020-01-01T00:00:00Z&key=k", "a"),
            ("from=tail", "d"),
            ("", "d"),
        ):
            async with await running.ask(query) as peer:
                await peer.opened()
                if expected == "d":
                    await running.write(b"d")
                assert values_of(await peer.messages(1)) == [expected], query
        async with await running.ask("from=head", headers={"Last-Event-ID": str(cut)}) as peer:
            assert values_of(await peer.messages(1)) == ["b"]


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        (f"{PATH}?from=yesterday", 400, "bookmark:NAME"),
        (f"{PATH}?from=bookmark:none", 400, "no bookmark 'none'"),
        (f"{PATH}?from=shop/returns@1:0.0", 400, "shop/returns"),
        (f"{PATH}?from=shop/orders@999:0.0", 400, "999"),
        (f"{PATH}?since=head", 400, "from, key, token"),
        (f"{PATH}?from=head&from=tail", 400, "once"),
        (f"{PATH}?from", 400, "NAME=VALUE"),
        (f"{PATH}?key=%ff", 400, "UTF-8"),
        ("/streams/shop/a%2fb/events", 400, "scope/name"),
        ("/streams/shop/..%00/events", 400, "letters"),
        ("/streams/shop/returns/events", 404, "stream list"),
        ("/streams/shop/orders", 404, "/streams/SCOPE/STREAM/events"),
        ("/streams/orders/events", 404, "/streams/SCOPE/STREAM/events"),
        ("/stream", 404, "/streams/SCOPE/STREAM/events"),
    ],
)
@pytest.mark.asyncio
async def test_a_request_that_is_wrong_is_told_what_would_be_right(
    tmp_path: Path, path: str, status: int, told: str
) -> None:
    async with shop(tmp_path) as running, await running.ask(path=path) as peer:
        assert (peer.status, peer.headers["content-type"]) == (status, "application/json")
        assert told in await peer.error()


@pytest.mark.asyncio
async def test_places_that_no_feed_gave_and_other_methods_are_refused(tmp_path: Path) -> None:
    async with shop(tmp_path) as running:
        async with await running.ask(headers={"Last-Event-ID": "head"}) as peer:
            assert (peer.status, "stream cut" in await peer.error()) == (400, True)
        for method in ("POST", "PUT", "DELETE"):
            async with await running.ask(method=method) as peer:
                assert (peer.status, peer.headers["allow"]) == (405, "GET, OPTIONS")
                assert "GET" in await peer.error()
        async with await running.ask(method="HEAD") as peer:
            assert (peer.status, await peer.body()) == (405, b"")
        assert running.counters.refused_total == 5
        assert running.counters.open == 0


@pytest.mark.asyncio
async def test_a_server_with_a_token_asks_for_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Behaviour 53: nothing is read without it, and it is not logged."""
    caplog.set_level(logging.DEBUG)
    async with shop(tmp_path, front=FrontOptions(token="s3crät")) as running:
        await running.write(b"a")
        for query, headers in (
            ("from=head", {}),
            ("from=head&token=s3cr", {}),
            ("from=head&token=s3cr%C3%A4t", {"Authorization": "Bearer wrong"}),
            ("from=head&token=%C3%A4", {}),
        ):
            async with await running.ask(query, headers=headers) as peer:
                assert (peer.status, peer.headers["www-authenticate"]) == (401, "Bearer")
                assert "Authorization: Bearer TOKEN" in await peer.error()
        for query, headers in (
            ("from=head&token=s3cr%C3%A4t", {}),
            ("from=head", {"Authorization": "Bearer s3crät"}),
            ("from=head", {"Authorization": "bearer  s3crät"}),
        ):
            async with await running.ask(query, headers=headers) as peer:
                assert values_of(await peer.messages(1)) == ["a"]
    assert "s3cr" not in caplog.text


@pytest.mark.asyncio
async def test_pages_of_other_origins_may_read_it_where_they_are_listed(tmp_path: Path) -> None:
    page = {"Origin": "https://shop.example"}
    async with shop(tmp_path / "listed", feed=FeedOptions(origins="https://shop.example")) as running:
        async with await running.ask(headers=page) as peer:
            assert peer.headers["access-control-allow-origin"] == "https://shop.example"
        async with await running.ask("from=nowhere", headers=page) as peer:
            assert (peer.status, peer.headers["access-control-allow-origin"]) == (400, "https://shop.example")
        async with await running.ask(headers={"Origin": "https://other.example"}) as peer:
            assert "access-control-allow-origin" not in peer.headers
            assert peer.headers["vary"] == "Origin"
        async with await running.ask(method="OPTIONS", headers=page) as peer:
            assert peer.status == 204
            assert "Authorization" in peer.headers["access-control-allow-headers"]
    async with shop(tmp_path / "all", feed=FeedOptions(origins="*")) as running:
        async with await running.ask(headers=page) as peer:
            assert peer.headers["access-control-allow-origin"] == "*"


@pytest.mark.asyncio
async def test_so_many_feeds_are_open_at_once_and_the_rest_of_the_console_answers(tmp_path: Path) -> None:
    """Behaviour 8: a typed refusal, and room again when a peer has left, which is noticed without an event."""
    async with shop(tmp_path, feed=FeedOptions(count_max=5)) as running, AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(await running.ask()) for _ in range(3)]
        async with await running.ask() as peer:
            assert (peer.status, peer.headers["retry-after"]) == (503, "5")
            assert "3 feeds are open" in await peer.error()
        for _ in range(70):  # more than the connections that the console has at once
            async with await running.ask(path="/health") as peer:
                assert peer.status == 200
        await peers.pop().__aexit__(None, None, None)
        await until(lambda: running.counters.open == 2)
        async with await running.ask("from=head") as peer:
            await running.write(b"a")
            assert values_of(await peer.messages(1)) == ["a"]
        assert running.counters.refused_total == 1


@pytest.mark.asyncio
async def test_who_has_read_a_sealed_stream_to_its_end_is_told_to_stay_away(tmp_path: Path) -> None:
    async with shop(tmp_path) as running:
        await running.write(b"a")
        await running.client.seal_stream(STREAM)
        async with await running.ask("from=head") as peer:
            *_, end = await peer.messages()
            assert (end.event, end.content()) == ("end", {"reason": "sealed"})
        async with await running.ask(headers={"Last-Event-ID": peer.place}) as peer:
            assert (peer.status, await peer.body()) == (204, b"")


MUCH: Final = 400
VALUE: Final = b"v" * 20_000
LARGE: Final[dict[str, Any]] = {
    "wal": replace(SMALL_WAL, file_size_bytes=4 * MIB, batch_size_bytes_max=1 * MIB),
    "feed": FeedOptions(window_bytes=WINDOW_BYTES_MIN),
}
"""A server that takes much at once, and fetches little of it ahead."""


async def write_much(running: Shop) -> None:
    async with running.client.writer(STREAM) as writer:
        for _ in range(MUCH):
            await writer.drain()
            _ = writer.write(VALUE, key="k")


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_peer_that_takes_nothing_costs_little_and_holds_up_nobody(tmp_path: Path) -> None:
    """Behaviours 8 and 18: what was not taken is bounded, also in the server, and all of it comes when it is."""
    async with shop(tmp_path, **LARGE) as running:
        async with await running.ask("from=head") as slow:
            assert slow.status == 200
            await write_much(running)
            async with await running.ask("from=head") as quick:
                assert len(await quick.messages(MUCH)) == MUCH
            # Sockets of this machine take some megabytes before they are full.
            taken = running.counters.events_total - MUCH
            assert taken < MUCH
            assert running.server.statistics()["server"].reader_bytes < 4 * WINDOW_BYTES_MIN
            assert await running.client.ping() < PATIENCE_S
            values = [message.content()["value"] for message in await slow.messages(MUCH)]
            assert values == [VALUE.decode()] * MUCH


@pytest.mark.slow
@pytest.mark.asyncio
async def test_peers_that_take_nothing_make_room_for_others(tmp_path: Path) -> None:
    """Behaviour 104: the feed is not closed to all, and the memory of all feeds is bounded."""
    options = replace(LARGE["feed"], count_max=4)
    async with shop(tmp_path, wal=LARGE["wal"], feed=options) as running, AsyncExitStack() as stack:
        stalled = [await stack.enter_async_context(await running.ask("from=head")) for _ in range(2)]
        for peer in stalled:
            await peer.opened()
        await write_much(running)
        await until(lambda: running.counters.events_total > 0)

        opened = 0
        while opened < len(stalled):  # until they have taken nothing for long enough
            peer = await stack.enter_async_context(await running.ask("from=head"))
            if peer.status == 200:
                assert len(await peer.messages(MUCH)) == MUCH
                opened += 1
        assert running.counters.open == len(stalled)


def fetched_bytes() -> int:
    """Return the bytes of blocks and events that readers of this process hold."""
    found = gc.get_objects()
    events = sum(len(each.value) for each in found if type(each) is Event)
    streams = [each for each in found if type(each) is BlockStream]
    return events + sum(
        sum(len(data) for _, data in stream._queue) + sum(map(len, stream._pieces)) for stream in streams
    )


def follow_without_reading(running: Shop, stack: AsyncExitStack) -> None:
    """Ask for a feed over a socket that takes little before it is full."""
    where = Address.parse(running.server.console_address, default_port=0)
    peer = stack.enter_context(socket.socket())
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect((where.host, where.port))
    peer.sendall(f"GET {PATH}?from=head HTTP/1.1\r\nHost: {where}\r\n\r\n".encode())


@pytest.mark.slow
@pytest.mark.asyncio
async def test_what_peers_hold_that_never_read_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behaviour 104: blocks of 1 MiB; each peer is served in its turn, and none is cut."""
    monkeypatch.setattr(feed_places, "SLICE_S", 0.05)
    count = 8  # which leaves room for another one of the same address
    options = FeedOptions(bytes_max=4 * MIB, count_max=2 * count + 2)
    wal = replace(LARGE["wal"], file_size_bytes=8 * MIB, batch_size_bytes_max=4 * MIB, run_size_bytes_max=4 * MIB)
    async with shop(tmp_path, wal=wal, feed=options) as running, AsyncExitStack() as stack:
        async with running.client.writer(STREAM) as writer:
            for _ in range(16):
                await writer.write_many([b"v" * 32_768] * 32, key="k")
                await writer.flush()
        for _ in range(count):
            follow_without_reading(running, stack)
        await until(lambda: running.counters.opened_total == count)
        site = running.server._console
        assert site is not None
        places = site._feeds._places

        def all_have_stalled() -> bool:
            assert places.held_bytes <= options.bytes_max + MIB  # and the chunks that are being sent
            stalled = places._stalled(for_s=0.0)
            return len(stalled) == count and sum(bool(place.reader_bytes) for place in stalled) <= 1

        await until(all_have_stalled)
        assert fetched_bytes() <= options.bytes_max + count * 2 * WINDOW_BYTES_MIN
        async with await running.ask("from=head") as quick:
            assert [message.content()["index"] for message in await quick.messages(64)] == [*range(32)] * 2
        assert running.counters.opened_total == count + 1
        assert running.counters.open >= count


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_peer_that_takes_nothing_for_too_long_is_cut_and_can_resume(tmp_path: Path) -> None:
    """Behaviour 50."""
    options = replace(LARGE["feed"], patience_s=0.5)
    async with shop(tmp_path, wal=LARGE["wal"], feed=options) as running:
        async with await running.ask("from=head") as slow:
            await slow.opened()
            await write_much(running)
            await until(lambda: running.counters.open == 0)
            messages = await slow.messages()
            assert 0 < len(messages) < MUCH
        async with await running.ask(headers={"Last-Event-ID": slow.place}) as again:
            rest = await again.messages(MUCH - len(messages))
        contents = [message.content() for message in [*messages, *rest]]
        places = [(content["offset"], content["index"]) for content in contents]
        assert len(set(places)) == MUCH
        assert places == sorted(places)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_end_of_the_server_is_the_end_of_its_feeds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Behaviour 48: at once, in order, and whether they wait for events or for their peer."""
    async with AsyncExitStack() as stack:
        async with shop(tmp_path, **LARGE) as running:
            stalled = await stack.enter_async_context(await running.ask("from=head"))
            await write_much(running)
            waiting = [await stack.enter_async_context(await running.ask()) for _ in range(3)]
            for peer in waiting:
                await peer.opened()
            await running.client.close()
            caplog.clear()
            await running.server.stop()
            assert [await peer.message() for peer in waiting] == [None] * 3
            assert len(await stalled.messages()) < MUCH
            assert running.counters.open == 0
    # No client of a feed has waited for a server that does not come back, and no connection had to be cut.
    assert [record.message for record in caplog.records if record.name.startswith("millrace")] == []


@pytest.mark.asyncio
async def test_a_client_of_http_1_0_gets_a_feed_too(tmp_path: Path) -> None:
    async with shop(tmp_path) as running:
        await running.write(b"a")
        await running.client.seal_stream(STREAM)
        where = Address.parse(running.server.console_address, default_port=0)
        reader, writer = await asyncio.open_connection(where.host, where.port)
        writer.write(f"GET {PATH}?from=head HTTP/1.0\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        assert b"chunked" not in head
        assert body.startswith(b"id: ")
        assert body.endswith(b'data: {"reason": "sealed"}\n\n')
