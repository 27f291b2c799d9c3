"""An object store of a cloud, reached through obstore: S3 and compatible stores, Google Cloud, Azure.

Each call makes one attempt: `RetryingStore` retries, so obstore must not. Each of the following rules comes from a
failure (scale-out, section 2 of the design):

- Import obstore and open connections only in `connect`: after a fork its threads are missing and the child would hang,
  so a call in a forked child is rejected.
- obstore's only timeout is for a whole request with all its bytes, whatever their number. So each request gets a
  timeout here, which grows with its bytes; the client's own is set out of reach.
- A put is never multipart: a multipart put cannot be conditional, and an aborted one leaves parts that cost money.
- Google Cloud compares versions, the other stores ETags. So a tag of Google starts with its version, as `17 "abc"`; the
  others omit it: None in place of a version is a TypeError, and S3 does not return a version with each answer.
- A read at or beyond the end is an error (416) in all stores; a read of zero bytes is an error in obstore itself.
- Prefixes of listings are whole folders in obstore, and S3 Express does not sort: names are compared here.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from millrace.model.checksum import Buffer
from millrace.model.extras import needs
from millrace.server.errors import (
    ConfigurationError,
    ObjectNotFoundError,
    StoreRefusedError,
    StoreUnavailableError,
)
from millrace.server.host.clock import Clock, SystemClock

from .cloud_errors import status_of, translated
from .options import BYTES_PER_S_MIN
from .store import ObjectInfo, StoredObject
from .url import StoreUrl

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

CONNECT_S_MAX: Final = 5.0
CLIENT_S_MAX: Final = 86_400.0
"""The timeout of the client, which requires one."""
PAGE_COUNT: Final = 1000
"""Objects in a page of a listing: as many as one request of S3 lists, or deletes."""
_RANGE_NOT_SATISFIABLE: Final = 416
_EXPRESS_SUFFIX: Final = "--x-s3"
_SCHEMES_WITH_VERSIONS: Final = ("gs",)
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")


class CloudStore:
    """An `ObjectStore` in a bucket. Belongs to one event loop; made by `connect`."""

    def __init__(
        self,
        client: "Client",
        *,
        is_sorted: bool,
        has_versions: bool,
        attempt_s: float,
        bytes_per_s_min: int,
        clock: Clock,
    ) -> None:
        import obstore

        self._obstore: Any = obstore
        self._client = client
        self._is_sorted = is_sorted
        self._has_versions = has_versions
        self._attempt_s = attempt_s
        self._bytes_per_s_min = bytes_per_s_min
        self._clock = clock
        self._process = os.getpid()

    @classmethod
    async def connect(
        cls, url: StoreUrl, *, attempt_s: float, bytes_per_s_min: int = BYTES_PER_S_MIN, clock: Clock | None = None
    ) -> "CloudStore":
        """Return the store that a URL names, with the credentials of the environment. Sends no request yet.

        Args:
            url: the bucket, and the prefix of all keys.
            attempt_s: timeout of one request, not counting the time for its bytes.
            bytes_per_s_min: a request gets one more second for each of this many bytes.
            clock: for the timeouts.

        Raises:
            MissingExtraError: obstore is not installed.
            ConfigurationError: the environment is incomplete.
        """
        # Loads certificates: tens of milliseconds.
        client = await asyncio.to_thread(_client, url, attempt_s)
        return cls(
            client,
            is_sorted=not url.bucket.endswith(_EXPRESS_SUFFIX),
            has_versions=url.scheme in _SCHEMES_WITH_VERSIONS,
            attempt_s=attempt_s,
            bytes_per_s_min=bytes_per_s_min,
            clock=clock or SystemClock(),
        )

    async def create(self, key: str, pieces: Sequence[Buffer]) -> str:
        """Store a new object, see `ObjectStore`."""
        return await self._put(key, b"".join(pieces), "create")

    async def replace(self, key: str, content: Buffer, *, tag: str) -> str:
        """Store an object in place of that with a tag, see `ObjectStore`."""
        return await self._put(key, bytes(content), decode_tag(tag, has_version=self._has_versions))

    async def get(self, key: str) -> StoredObject:
        """Return a whole object, see `ObjectStore`."""
        self._check_process()
        async with self._request(key):
            found = await self._obstore.get_async(self._client, key)
        async with self._request(key, size=found.meta["size"]):
            content = bytes(await found.bytes_async())
        return StoredObject(content, encode_tag(found.meta, has_version=self._has_versions))

    async def read(self, key: str, *, offset: int, size: int) -> bytes:
        """Return a part of an object, see `ObjectStore`."""
        assert offset >= 0
        assert size >= 0
        self._check_process()
        if not size:
            await self.size(key)  # raises if the object is missing
            return b""
        async with self._request(key, size=size):
            try:
                found = await self._obstore.get_range_async(self._client, key, start=offset, end=offset + size)
            except Exception as error:
                if status_of(error) != _RANGE_NOT_SATISFIABLE:
                    raise
                return b""
            return bytes(found)

    async def size(self, key: str) -> int:
        """Return the size of an object, see `ObjectStore`."""
        self._check_process()
        async with self._request(key):
            size: int = (await self._obstore.head_async(self._client, key))["size"]
            return size

    async def list(self, prefix: str = "", *, after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Yield pages of a listing, see `ObjectStore`."""
        if self._is_sorted:
            async for page in self._pages(prefix, after):
                yield page
        elif found := [each async for page in self._pages(prefix, after) for each in page]:
            yield sorted(found, key=lambda each: each.key)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, see `ObjectStore`."""
        self._check_process()
        if not keys:
            return
        try:
            async with self._request("", count=ceil(len(keys) / PAGE_COUNT)):
                await self._obstore.delete_async(self._client, list(keys))
        except ObjectNotFoundError:  # of Azure; the other objects may still exist
            if len(keys) > 1:
                for key in keys:
                    await self.delete([key])

    async def close(self) -> None:
        """Do nothing: connections end with the last reference to the client."""

    async def _put(self, key: str, content: bytes, mode: Any) -> str:
        self._check_process()
        try:
            async with self._request(key, size=len(content)):
                put = self._obstore.put_async(self._client, key, content, mode=mode, use_multipart=False)
                return encode_tag(await put, has_version=self._has_versions)
        except ObjectNotFoundError as error:
            reason = (
                "the bucket does not exist, or the access key is unknown to the store; its answer does not say which"
            )
            raise StoreRefusedError(reason, subject=key) from error

    async def _pages(self, prefix: str, after: str) -> AsyncIterator[Sequence[ObjectInfo]]:
        self._check_process()
        folder = prefix.rpartition("/")[0]
        stream = self._obstore.list(
            self._client, folder or None, offset=max(after, _before(prefix)) or None, chunk_size=PAGE_COUNT
        )
        pages = aiter(stream)
        is_over = False
        while not is_over:
            async with self._request(prefix):
                page = await anext(pages, None)
            if page is None:
                return
            found = [
                ObjectInfo(each["path"], each["size"])
                for each in page
                if each["path"].startswith(prefix) and each["path"] > after
            ]
            if found:
                yield found
            last = page[-1]["path"]
            is_over = self._is_sorted and last > prefix and not last.startswith(prefix)

    @asynccontextmanager
    async def _request(self, key: str, *, size: int = 0, count: int = 1) -> AsyncIterator[None]:
        """Bound the time of the body, and translate its errors (`translated`).

        Args:
            key: the subject of the request; empty for the store as a whole.
            size: bytes in either direction, at most.
            count: number of HTTP requests that the client makes.
        """
        allowed_s = count * self._attempt_s + size / self._bytes_per_s_min
        with translated(key):
            try:
                async with self._clock.timeout(allowed_s):
                    yield
            except TimeoutError as error:
                raise StoreUnavailableError(
                    f"the store does not answer (not in {allowed_s:g} s)", subject=key
                ) from error

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError("an object store cannot be used after a fork; start a process of its own instead")


def encode_tag(answer: Mapping[str, Any], *, has_version: bool) -> str:
    """Return the tag of an object from an answer of the client, preceded by the version for stores that have one."""
    tag, version = (answer.get(name) or "" for name in ("e_tag", "version"))
    return f"{version} {tag}" if has_version else tag


def decode_tag(tag: str, *, has_version: bool) -> dict[str, str]:
    """Return the conditions that the client should compare, from a tag. An unknown one is absent, never None."""
    version, _, e_tag = tag.partition(" ") if has_version else ("", "", tag)
    return {name: value for name, value in (("e_tag", e_tag), ("version", version)) if value}


def _client(url: StoreUrl, attempt_s: float) -> "Client":
    with needs("store"):
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    more: dict[str, Any] = {}
    if url.scheme == "s3" and os.environ.get("AWS_PROFILE"):
        more["credential_provider"] = _profile_credentials()
    try:
        return from_url(
            str(url),
            client_options={
                "timeout": timedelta(seconds=CLIENT_S_MAX),
                "connect_timeout": timedelta(seconds=min(attempt_s, CONNECT_S_MAX)),
                "allow_http": _allows_http(),
            },
            retry_config={"max_retries": 0},
            **more,
        )
    except (BaseError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(f"cannot be used: {reason}", subject=str(url)) from error


def _profile_credentials() -> Any:
    """Return a credential provider for the profile in AWS_PROFILE, from the files of the AWS tools.

    Raises:
        ConfigurationError: the library that reads the profile is not installed, or the profile does not exist.
    """
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider

        return Boto3CredentialProvider()
    except ModuleNotFoundError as error:
        raise ConfigurationError("AWS_PROFILE is set; to read profiles, install the package boto3") from error
    except Exception as error:
        if not type(error).__module__.startswith("botocore"):
            raise
        raise ConfigurationError(f"AWS_PROFILE cannot be used: {error}") from error


def _allows_http() -> bool:
    """Return whether the environment allows a store without TLS. obstore ignores its own option beside timeouts."""
    if os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes"):
        return True
    return any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS)


def _before(prefix: str) -> str:
    """Return a key that sorts before all keys with a prefix and after most others; empty if no plain one exists.

    The key must be valid for obstore.
    """
    last = chr(ord(prefix[-1]) - 1) if prefix else ""
    return prefix[:-1] + last if last.isalnum() or last in (",", "-", ".") else ""
