"""Each answer that a store gives, on its way through obstore. The answers are those of S3, and of one that stalls."""

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millrace.server.errors import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StoreBusyError,
    StoreFullError,
    StoreRefusedError,
    StoreUnavailableError,
)
from millrace.server.object_store import StoreUrl
from millrace.server.object_store.cloud import CloudStore
from tests.support.s3 import Versitygw

URL = StoreUrl.parse("s3://bucket/prefix")

Ask = Callable[[CloudStore], Coroutine[Any, Any, object]]


def create(store: CloudStore) -> Coroutine[Any, Any, object]:
    return store.create("key", [b"a", b"b"])


def replace(store: CloudStore) -> Coroutine[Any, Any, object]:
    return store.replace("key", b"ab", tag='"1"')


def read(store: CloudStore) -> Coroutine[Any, Any, object]:
    return store.read("key", offset=0, size=10)


def size(store: CloudStore) -> Coroutine[Any, Any, object]:
    return store.size("key")


def delete(store: CloudStore) -> Coroutine[Any, Any, object]:
    return store.delete(["key"])


async def answered(monkeypatch: pytest.MonkeyPatch, status: str, code: str, ask: Ask) -> StorageError:
    """Return what a request raises that a store answers so; without a status it says nothing and hangs up."""
    body = f"<Error><Code>{code}</Code></Error>" if code else ""
    if ask is delete:
        body = (
            f"<DeleteResult>{body.replace('<Code>', '<Key>prefix/key</Key><Message>m</Message><Code>')}</DeleteResult>"
        )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if status:
            writer.write(
                f"HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
            )
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        store = await CloudStore.connect(URL, attempt_s=30.0)
        with pytest.raises(StorageError) as caught:
            await ask(store)
    return caught.value


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "code", "ask", "meaning", "words"),
    [
        ("412 Precondition Failed", "PreconditionFailed", create, ObjectExistsError, "the object already exists"),
        ("409 Conflict", "BlobAlreadyExists", create, ObjectExistsError, "the object already exists"),
        ("409 Conflict", "ConditionalRequestConflict", create, StoreUnavailableError, "409 ConditionalRequestConflict"),
        ("409 Conflict", "", replace, StoreUnavailableError, "could not do it now"),
        ("412 Precondition Failed", "", replace, ObjectChangedError, "is another one"),
        ("404 Not Found", "NoSuchKey", replace, ObjectChangedError, "or is gone"),
        ("404 Not Found", "NoSuchBucket", replace, StoreRefusedError, "the bucket does not exist"),
        ("404 Not Found", "NoSuchBucket", create, StoreRefusedError, "the bucket does not exist"),
        ("404 Not Found", "NoSuchBucket", read, StoreRefusedError, "the bucket does not exist"),
        ("404 Not Found", "NoSuchKey", read, ObjectNotFoundError, "object does not exist"),
        ("404 Not Found", "", size, ObjectNotFoundError, "object does not exist"),
        ("503 Service Unavailable", "SlowDown", create, StoreBusyError, "rate-limits requests .503 SlowDown"),
        ("429 Too Many Requests", "", read, StoreBusyError, "rate-limits requests .429"),
        ("500 Internal Server Error", "", create, StoreUnavailableError, "does not answer .500"),
        ("400 Bad Request", "RequestTimeout", create, StoreUnavailableError, "400 RequestTimeout"),
        ("400 Bad Request", "ExpiredToken", create, StoreRefusedError, "400 ExpiredToken"),
        (
            "404 Not Found",
            "",
            create,
            StoreRefusedError,
            "bucket does not exist, or the access key is unknown to the store",
        ),
        ("404 Not Found", "NoSuchThing", create, StoreRefusedError, "something other than the object .404 NoSuchThing"),
        (
            "404 Not Found",
            "NoSuchThing",
            replace,
            StoreRefusedError,
            "something other than the object .404 NoSuchThing",
        ),
        ("404 Not Found", "NoSuchThing", read, StoreRefusedError, "something other than the object .404 NoSuchThing"),
        ("403 Forbidden", "InvalidAccessKeyId", read, StoreRefusedError, "does not know the access key .403 Invalid"),
        ("403 Forbidden", "SignatureDoesNotMatch", read, StoreRefusedError, "secret key is not that of .* .403 Sign"),
        ("403 Forbidden", "AccessDenied", create, StoreRefusedError, "does not permit it to .* .403 AccessDenied"),
        ("200 OK", "AccessDenied", delete, StoreRefusedError, "does not permit it to this access key .AccessDenied"),
        ("200 OK", "InternalError", delete, StoreUnavailableError, "does not answer .InternalError"),
        ("200 OK", "SlowDown", delete, StoreBusyError, "rate-limits requests .SlowDown"),
        ("507 Insufficient Storage", "", create, StoreFullError, "it is full .507."),
        ("507 Insufficient Storage", "XMinioStorageFull", create, StoreFullError, "it is full .507 XMinioStorageFull"),
        ("507 Insufficient Storage", "XMinioStorageFull", replace, StoreFullError, "it is full .507 XMinioStorageFull"),
        ("403 Forbidden", "QuotaExceeded", create, StoreFullError, "it is full .403 QuotaExceeded"),
        ("403 Forbidden", "QuotaExceeded", replace, StoreFullError, "it is full .403 QuotaExceeded"),
        ("400 Bad Request", "XMinioAdminBucketQuotaExceeded", create, StoreFullError, "400 XMinioAdminBucketQuotaExc"),
        ("400 Bad Request", "EntityTooLarge", create, StoreRefusedError, "400 EntityTooLarge"),
        ("401 Unauthorized", "", read, StoreRefusedError, "does not permit it .401"),
        ("501 Not Implemented", "NotImplemented", create, StoreRefusedError, "does not know how"),
        ("301 Moved Permanently", "", create, StoreRefusedError, "set AWS_REGION"),
        ("", "", create, StoreUnavailableError, "does not answer .HTTP error"),
        ("", "", read, StoreUnavailableError, "does not answer .HTTP error"),
    ],
)
async def test_an_answer_is_what_it_means(
    monkeypatch: pytest.MonkeyPatch, status: str, code: str, ask: Ask, meaning: type[StorageError], words: str
) -> None:
    """Behaviour 92: that it is open whether something happened is never told as anything else."""
    error = await answered(monkeypatch, status, code, ask)

    assert type(error) is meaning
    assert re.search(words, str(error)), str(error)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "code", "is_undone"),
    [
        ("409 Conflict", "ConditionalRequestConflict", True),
        ("409 Conflict", "OperationAborted", True),
        ("503 Service Unavailable", "SlowDown", True),
        ("429 Too Many Requests", "", True),
        ("403 Forbidden", "QuotaExceeded", True),
        ("400 Bad Request", "XMinioAdminBucketQuotaExceeded", True),
        ("507 Insufficient Storage", "XMinioStorageFull", False),
        ("507 Insufficient Storage", "", False),
        ("409 Conflict", "", False),
        ("503 Service Unavailable", "", False),
        ("503 Service Unavailable", "SlowDownWrite", False),
        ("500 Internal Server Error", "InternalError", False),
        ("502 Bad Gateway", "", False),
        ("504 Gateway Timeout", "SlowDown", False),
        ("400 Bad Request", "RequestTimeout", False),
    ],
)
async def test_only_the_store_itself_can_say_that_nothing_was_changed(
    monkeypatch: pytest.MonkeyPatch, status: str, code: str, is_undone: bool
) -> None:
    """Behaviour 92: a gateway that gives up does not know what became of the request."""
    error = await answered(monkeypatch, status, code, replace)

    assert isinstance(error, StoreUnavailableError)
    assert error.changed_nothing is is_undone


@pytest.mark.asyncio
@pytest.mark.parametrize("ask", [create, replace, read, delete])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("AWS_ACCESS_KEY_ID", "the store does not know the access key"),
        ("AWS_SECRET_ACCESS_KEY", "the secret key is not that of the access key"),
    ],
)
async def test_a_wrong_key_is_no_missing_bucket_and_no_missing_object(
    versitygw: Versitygw, monkeypatch: pytest.MonkeyPatch, ask: Ask, name: str, words: str
) -> None:
    """versitygw answers an access key that it does not know with 404."""
    bucket = versitygw.make_bucket()
    for each, value in (bucket.environment | {name: "another"}).items():
        monkeypatch.setenv(each, value)
    store = await CloudStore.connect(StoreUrl.parse(bucket.url), attempt_s=30.0)

    with pytest.raises(StoreRefusedError, match=words):
        await ask(store)
