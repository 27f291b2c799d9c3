"""A server whose history is in an object store, over moto."""

import asyncio
from pathlib import Path

import pytest

import millrace
from millrace.client.testing import TestServer
from millrace.server.app import Server
from millrace.server.errors import ConfigurationError, StorageError, UnsupportedStoreError
from millrace.server.object_store import StoreUrl
from millrace.server.object_store.cloud import CloudStore
from tests.support.s3 import MotoServer
from tests.support.servers import ENVIRONMENT_OF_BUSY, server_options
from tests.support.waiting import until

pytestmark = pytest.mark.slow

EVENTS = [b"%04d" % number * 500 for number in range(60)]
"""Several chunks of a server that flushes at once."""


@pytest.fixture
def url(moto: MotoServer, monkeypatch: pytest.MonkeyPatch) -> StoreUrl:
    """A prefix of a new bucket, which this process and its children can reach."""
    bucket = moto.make_bucket()
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    return StoreUrl.parse(bucket.url)


def keys_in(url: StoreUrl) -> list[str]:
    async def listed() -> list[str]:
        store = await CloudStore.connect(url, attempt_s=60.0)
        return [each.key async for page in store.list() for each in page]

    return asyncio.run(listed())


def test_history_is_in_the_bucket_and_read_from_there(url: StoreUrl, tmp_path: Path) -> None:
    """What was flushed is read from the store after a restart, byte for byte."""
    folder = tmp_path / "data"
    server = TestServer(folder, settings={**ENVIRONMENT_OF_BUSY, "MILLRACE_STORE": str(url)})
    server.start()
    try:
        with millrace.blocking.connect(server.address) as client:
            client.create_stream("shop/orders")
            with client.writer("shop/orders") as writer:
                for event in EVENTS:
                    writer.write(event)
        assert server.stop() == 0
        keys = keys_in(url)
        server.start()
        with millrace.blocking.connect(server.address) as client:
            client.seal_stream("shop/orders")
            with client.reader("shop/orders") as reader:
                found = [event.value for event in reader]
    finally:
        server.kill()

    assert found == EVENTS
    assert [key for key in keys if "/segments/" in key]
    assert [key for key in keys if not key.startswith("c0000/")] == ["cluster.json"]  # the probe has left nothing
    assert not (folder / "tier2").exists()


def test_a_server_whose_lease_was_ended_says_so_and_exits_with_an_error(
    url: StoreUrl, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Behaviour 91: whatever watches over the process sees that it was superseded."""

    async def end_leases() -> None:
        store = await CloudStore.connect(url, attempt_s=60.0)
        await store.delete([each.key async for page in store.list("workers/") for each in page])

    settings = {**ENVIRONMENT_OF_BUSY, "MILLRACE_STORE": str(url), "MILLRACE_OBJECTS_LEASE_S": "1"}
    server = TestServer(tmp_path / "data", settings=settings)
    server.start()
    try:
        asyncio.run(end_leases())
        asyncio.run(until(lambda: not server.running))
        assert server.stop() == 1
    finally:
        server.kill()
    assert "its lease" in capfd.readouterr().err


@pytest.mark.asyncio
async def test_a_folder_stays_with_its_store_and_a_prefix_with_its_server(url: StoreUrl, tmp_path: Path) -> None:
    """Behaviour 90: what does not belong together is refused in a sentence, and nothing is changed by that."""
    folder, other_url = tmp_path / "data", StoreUrl(url.scheme, url.bucket, "other")
    async with Server(server_options(folder, store=url)):
        pass
    async with Server(server_options(folder, store=url)):
        pass

    with pytest.raises(ConfigurationError, match=f"history is in the object store {url}, not in the folder itself"):
        await Server(server_options(folder)).start()
    with pytest.raises(ConfigurationError, match=f"not in the object store {other_url}; start it with --store {url}"):
        await Server(server_options(folder, store=other_url)).start()
    with pytest.raises(UnsupportedStoreError, match=r"belongs to server .*, but this is server .*; use another prefix"):
        await Server(server_options(tmp_path / "other", store=url)).start()
    # It has kept nothing, so it may have another one.
    async with Server(server_options(tmp_path / "other", store=other_url)):
        pass


@pytest.mark.asyncio
async def test_a_folder_with_history_of_its_own_takes_no_store(url: StoreUrl, tmp_path: Path) -> None:
    async with Server(server_options(tmp_path)):
        pass

    with pytest.raises(ConfigurationError, match=f"its history is in the folder itself, not in the object store {url}"):
        await Server(server_options(tmp_path, store=url)).start()


@pytest.mark.asyncio
async def test_a_bucket_that_is_missing_is_named_and_the_folder_left_alone(url: StoreUrl, tmp_path: Path) -> None:
    missing = StoreUrl(url.scheme, "missing", "a")

    with pytest.raises(StorageError, match=r"s3://missing/a: .* the bucket does not exist"):
        await Server(server_options(tmp_path / "data", store=missing)).start()

    assert not (tmp_path / "data").exists()
