"""What a start asks of a store, and whose a prefix is."""

import asyncio
import uuid

import pytest

from millrace.server.errors import StorageError, UnsupportedStoreError
from millrace.server.host.metrics import Metrics
from millrace.server.object_store import (
    ObjectStoreOptions,
    RetryingStore,
    StoreMonitor,
    StoreUrl,
    claim,
    find_owner,
    open_store,
)
from millrace.server.object_store.opening import BUSY_PAUSE_S, OWNER_KEY
from millrace.server.object_store.probe import AT_ONCE
from tests.support.clock import ManualClock
from tests.support.object_store import MemoryObjectStore
from tests.support.s3 import HttpFault, MotoServer
from tests.support.tables import table
from tests.support.waiting import until

URL = StoreUrl.parse("s3://bucket/prefix")
ONE, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)


@pytest.mark.asyncio
async def test_a_start_waits_while_the_store_is_busy(moto: MotoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behaviour 92: throttling ends no start, though it ends each call."""
    bucket = moto.make_bucket()
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    clock = ManualClock()
    moto.gate.fail("PUT", *[HttpFault.UNAVAILABLE] * AT_ONCE)
    opening = asyncio.create_task(
        open_store(
            StoreUrl.parse(bucket.url),
            ObjectStoreOptions(patience_s=0.0),
            clock=clock,
            monitor=StoreMonitor(Metrics(), clock),
        )
    )
    await until(lambda: clock.sleeper_count or opening.done())
    assert not opening.done()

    clock.move(BUSY_PAUSE_S)
    store = await opening

    assert len(moto.gate.met) == AT_ONCE
    await store.close()


@pytest.mark.asyncio
async def test_a_prefix_is_that_of_the_first_server() -> None:
    """Behaviour 90: another one is refused, by name."""
    store = RetryingStore(MemoryObjectStore())
    await claim(store, URL, server_id=ONE, is_new=True)
    await claim(store, URL, server_id=ONE, is_new=True)
    await claim(store, URL, server_id=ONE, is_new=False)

    for is_new in (True, False):
        with pytest.raises(
            UnsupportedStoreError, match=f"s3://bucket/prefix: belongs to server {ONE}, but this is server {OTHER}"
        ):
            await claim(store, URL, server_id=OTHER, is_new=is_new)


@pytest.mark.asyncio
async def test_of_two_that_come_together_one_is_refused() -> None:
    memory = MemoryObjectStore()
    stores = [RetryingStore(memory), RetryingStore(memory)]

    results = await asyncio.gather(
        *[claim(store, URL, server_id=each, is_new=True) for store, each in zip(stores, (ONE, OTHER), strict=True)],
        return_exceptions=True,
    )

    assert sorted(type(result).__name__ for result in results) == ["NoneType", "UnsupportedStoreError"]


@pytest.mark.asyncio
async def test_an_empty_bucket_is_not_that_of_a_server_with_history() -> None:
    with pytest.raises(
        UnsupportedStoreError, match=f"contains no cluster.json, although server {ONE} stored its history there"
    ):
        await claim(RetryingStore(MemoryObjectStore()), URL, server_id=ONE, is_new=False)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cluster.json is damaged: it must be a JSON object"),
        (b"[]", "cluster.json is damaged: it must be a JSON object"),
        (b'{"format_version": 1}', "cluster.json is damaged: it must be a JSON object"),
        (b'{"format_version": 2, "server_id": "00000000-0000-0000-0000-000000000001"}', "is in format 2; .* format 1"),
    ],
)
async def test_what_cannot_be_read_is_refused(content: bytes, words: str) -> None:
    store = RetryingStore(MemoryObjectStore())
    await store.create(OWNER_KEY, [content])

    with pytest.raises((StorageError, UnsupportedStoreError), match=words):
        await claim(store, URL, server_id=ONE, is_new=False)


@pytest.mark.asyncio
@table("content", [None, b"", b"{}", b'{"format_version": 1}', "flipped"])
async def test_what_names_the_owner_is_made_again_if_the_history_names_it(content: bytes | str | None) -> None:
    """Behaviour 101: a flipped digit of the id, too, does not give the prefix to another server."""
    store = RetryingStore(MemoryObjectStore())
    if content is not None:
        await claim(store, URL, server_id=ONE, is_new=True)
        found = await store.get(OWNER_KEY)
        damaged = found.content.replace(b"0000-", b"0001-", 1) if isinstance(content, str) else content
        await store.replace(OWNER_KEY, damaged, tag=found.tag)
    assert (await find_owner(store, URL)).server_id is None

    with pytest.raises(UnsupportedStoreError, match=f"belongs to server {ONE}, but this is server {OTHER}"):
        await claim(store, URL, server_id=OTHER, is_new=True, known=ONE)
    await claim(store, URL, server_id=ONE, is_new=False, known=ONE)
    assert (await find_owner(store, URL)).server_id == ONE
    await claim(store, URL, server_id=ONE, is_new=False)


@pytest.mark.asyncio
async def test_an_owner_that_was_named_before_there_was_a_checksum_is_read() -> None:
    store = RetryingStore(MemoryObjectStore())
    await store.create(OWNER_KEY, [b'{\n  "format_version": 1,\n  "server_id": "%s"\n}\n' % str(ONE).encode()])
    await claim(store, URL, server_id=ONE, is_new=False)
