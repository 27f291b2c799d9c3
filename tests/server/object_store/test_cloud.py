"""How a store is asked: what to compare, a tag or the version that is kept beside it; and for how long it may take."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from millrace.server.errors import StoreRefusedError, StoreUnavailableError
from millrace.server.object_store import StoreUrl
from millrace.server.object_store.cloud import CloudStore, decode_tag, encode_tag
from millrace.wire.limits import MIB
from tests.support.clock import ManualClock
from tests.support.tables import table

ETAG = '"5d41 40"'


@table(
    ("answer", "has_version", "tag", "compared"),
    [
        ({"e_tag": ETAG, "version": None}, False, ETAG, {"e_tag": ETAG}),
        ({"e_tag": ETAG, "version": "3/L4"}, False, ETAG, {"e_tag": ETAG}),
        ({"e_tag": ETAG, "version": "17"}, True, f"17 {ETAG}", {"e_tag": ETAG, "version": "17"}),
        ({"e_tag": None, "version": "17"}, True, "17 ", {"version": "17"}),
        ({"e_tag": ETAG, "version": None}, True, f" {ETAG}", {"e_tag": ETAG}),
        ({"e_tag": None, "version": None}, False, "", {}),
    ],
)
def test_a_tag_keeps_what_the_store_compares(
    answer: dict[str, str | None], has_version: bool, tag: str, compared: dict[str, str]
) -> None:
    assert encode_tag(answer, has_version=has_version) == tag
    assert decode_tag(tag, has_version=has_version) == compared


async def slowly(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock, ask: Callable[[CloudStore], Awaitable[object]], after_s: float
) -> object:
    """Return what a request comes to whose body a store takes, and answers, after so long.

    It may take 1 s, and so long for each MiB.
    """
    asked, may_answer, served = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        asked.set()
        await may_answer.wait()
        size = int((re.findall(rb"\ncontent-length: (\d+)", head) or [b"0"])[0])
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # nobody waits for it any more
            await reader.readexactly(size)
            more = f"etag: {ETAG}\r\nlast-modified: Mon, 02 Nov 2026 20:00:00 GMT\r\n"
            writer.write(f"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n{more}\r\n".encode())
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        served.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        url = StoreUrl.parse("s3://bucket/prefix")
        store = await CloudStore.connect(url, attempt_s=1.0, bytes_per_s_min=MIB, clock=clock)
        request = asyncio.ensure_future(ask(store))
        await asked.wait()
        clock.move(after_s)
        for _ in range(10):
            await asyncio.sleep(0)
        may_answer.set()
        await asyncio.gather(request, served.wait(), return_exceptions=True)
        return request.result()


@pytest.mark.asyncio
async def test_a_request_may_take_longer_for_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large chunk on a slow way arrives; one without an answer is still given up, so that it is made again."""

    def put(store: CloudStore) -> Awaitable[object]:
        return store.create("key", [bytes(4 * MIB)])

    def size(store: CloudStore) -> Awaitable[object]:
        return store.size("key")

    assert await slowly(monkeypatch, ManualClock(), put, 4.9) == ETAG
    assert await slowly(monkeypatch, ManualClock(), size, 0.9) == 0
    for ask, after_s, words in ((put, 5.1, "not in 5 s"), (size, 1.1, "not in 1 s")):
        with pytest.raises(StoreUnavailableError, match=words) as caught:
            await slowly(monkeypatch, ManualClock(), ask, after_s)
        assert not caught.value.changed_nothing


@pytest.mark.asyncio
@pytest.mark.parametrize("generation", ["17", ""])
async def test_google_is_asked_to_compare_the_version(monkeypatch: pytest.MonkeyPatch, generation: str) -> None:
    """A store that tells none is refused: without a version a replace of Google cannot be conditional."""
    heads: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode().lower())
        version = f"x-goog-generation: {generation}\r\n" if generation else ""
        more = f"etag: {ETAG}\r\n{version}last-modified: Mon, 02 Nov 2026 20:00:00 GMT\r\n"
        writer.write(f"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n{more}\r\n".encode())
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        account = {"client_email": "", "private_key": "", "private_key_id": ""}
        key = json.dumps({"gcs_base_url": address, "disable_oauth": True, **account})
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", key)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "1")
        store = await CloudStore.connect(StoreUrl.parse("gs://bucket/prefix"), attempt_s=30.0)
        tag = await store.create("key", [b""])
        assert (await store.get("key")).tag == tag
        if generation:
            assert await store.replace("key", b"", tag=tag) == tag
            assert "x-goog-if-generation-match: 17\r\n" in heads[-1]
        else:
            with pytest.raises(StoreRefusedError, match="returns no version for an object"):
                await store.replace("key", b"", tag=tag)
            assert len(heads) == 2
    assert "x-goog-if-generation-match: 0\r\n" in heads[0]
