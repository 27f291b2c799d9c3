"""What a store is asked to compare: a tag, or the version that is kept beside it."""

import asyncio
import json

import pytest

from millrace.server.errors import StoreRefusedError
from millrace.server.object_store import StoreUrl
from millrace.server.object_store.cloud import CloudStore, decode_tag, encode_tag

ETAG = '"5d41 40"'


@pytest.mark.parametrize(
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
            with pytest.raises(StoreRefusedError, match="does not say which version an object has"):
                await store.replace("key", b"", tag=tag)
            assert len(heads) == 2
    assert "x-goog-if-generation-match: 0\r\n" in heads[0]
