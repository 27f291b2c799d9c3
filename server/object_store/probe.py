"""Tests whether an object store keeps its guarantees: many accept a condition and ignore it, or race on it.

Of any number of concurrent conditional puts exactly one may succeed, over whatever connections they arrive. HTTP/1.1,
which the stores use, allows one request on a connection at a time, so concurrent requests are on separate connections.

    probe/<unix seconds, 12 digits>-<id>/a, b, c    a few bytes each, of one probe that began then
"""

import asyncio
import re
import uuid
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from millrace.server.errors import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StoreUnavailableError,
)
from millrace.server.host.clock import Clock, SystemClock

from .retrying import RetryingStore
from .store import ObjectStore

AT_ONCE: Final = 20
PREFIX: Final = "probe/"
LEFT_S: Final = 86400.0
"""Objects of a probe that began this long ago are leftovers: no probe takes so long, and no clock is so wrong."""
_BEGUN: Final = re.compile(rf"{PREFIX}(\d{{12}})-", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Honesty:
    """Results of a probe.

    Attributes:
        created: of 20 concurrent puts under one new key, how many succeeded.
        replaced: of 20 concurrent puts in place of one object, how many succeeded.
        refuses_stale: whether the store rejected a put in place of an object that had been replaced.
        reads_latest: whether a read then returned the content of the last put.
        lists_latest: whether a listing returned all stored objects, in order, and no deleted ones.
    """

    created: int
    replaced: int
    refuses_stale: bool
    reads_latest: bool
    lists_latest: bool

    @property
    def fault(self) -> str:
        """What is wrong, as a continuation of "the store"; empty if the store passed."""
        if self.created != 1:
            return f"accepted {self.created} of {AT_ONCE} concurrent puts that create one object; exactly 1 may succeed"
        if self.replaced != 1:
            return (
                f"accepted {self.replaced} of {AT_ONCE} concurrent puts that replace one object; exactly 1 may succeed"
            )
        if not self.refuses_stale:
            return "replaced an object although the condition named an earlier version"
        if not self.reads_latest:
            return "returned an earlier version after a put had succeeded"
        if not self.lists_latest:
            return "returned a listing that differs from the stored objects"
        return ""


async def probe(store: RetryingStore, *, clock: Clock | None = None) -> Honesty:
    """Test the guarantees that every server relies on, under new keys, which the probe deletes again.

    Takes 88 requests (43 puts, 41 gets, 2 lists, 2 deletes), most of them concurrent. If a probe is killed or cannot
    clean up after a failure, a few hundred bytes remain until a probe a day later deletes them.

    Args:
        store: retries requests, otherwise a single failure fails the probe.
        clock: gives the start time of this probe.

    Raises:
        StoreUnavailableError: the store does not answer.
        StoreRefusedError: the store denies access, or does not support conditional puts.
    """
    now_s = (clock or SystemClock()).unix_us() // 1_000_000
    place = f"{PREFIX}{now_s:012}-{uuid.uuid4().hex}/"
    one, others = f"{place}b", [f"{place}c", f"{place}a"]
    contents = [f"{place}{number}".encode() for number in range(2 * AT_ONCE + 1)]
    try:
        creators, rivals, late = contents[:AT_ONCE], contents[AT_ONCE:-1], contents[-1:]
        first = await _winners(store, one, {each: store.create(one, [each]) for each in creators})
        tag = (await store.get(one)).tag
        second = await _winners(store, one, {each: store.replace(one, each, tag=tag) for each in rivals})
        refuses_stale = not await _winners(
            store, one, {each: store.replace(one, each, tag=tag) for each in late}, needs_one=False
        )
        found = (await store.get(one)).content
        for key in others:
            await store.create(key, [contents[-1]])
        everything = await _keys(store, PREFIX)
        listed = [key for key in everything if key.startswith(place)]
        await store.delete([others[0]])
        left = await _keys(store, place)
    except BaseException:
        # One attempt: a failing store would be retried for as long again, and the second failure would replace the
        # first.
        with suppress(StorageError):
            await store.delete_once([one, *others])
        raise
    await store.delete([one, *others, *(key for key in everything if _is_left(key, now_s))])
    return Honesty(
        created=len(first),
        replaced=len(second),
        refuses_stale=refuses_stale,
        reads_latest=[found] == second or len(second) != 1,
        lists_latest=listed == [others[1], one, others[0]] and left == [others[1], one],
    )


async def _winners(
    store: ObjectStore, key: str, puts: dict[bytes, Coroutine[Any, Any, str]], *, needs_one: bool = True
) -> list[bytes]:
    """Make conditional puts of a key concurrently; return the contents that succeeded.

    A put with an unknown outcome succeeded if the final content is its own: the probe judges the store, not the
    network.

    Raises:
        StoreUnavailableError: none succeeded although one had to, and not all were rejected.
    """
    results = dict(zip(puts, await asyncio.gather(*puts.values(), return_exceptions=True), strict=True))
    winners = [content for content, result in results.items() if isinstance(result, str)]
    unknown: dict[bytes, StoreUnavailableError] = {}
    for content, result in results.items():
        if isinstance(result, StoreUnavailableError):
            unknown[content] = result
        elif isinstance(result, BaseException) and not isinstance(result, ObjectExistsError | ObjectChangedError):
            raise result
    if unknown:
        final = await _content(store, key)
        winners += [content for content in unknown if content == final]
        if needs_one and not winners:
            raise next(iter(unknown.values()))
    return winners


def _is_left(key: str, now_s: int) -> bool:
    begun = _BEGUN.match(key)
    return begun is not None and int(begun[1]) <= now_s - LEFT_S


async def _content(store: ObjectStore, key: str) -> bytes | None:
    try:
        return (await store.get(key)).content
    except ObjectNotFoundError:
        return None


async def _keys(store: ObjectStore, prefix: str) -> list[str]:
    return [each.key async for page in store.list(prefix) for each in page]
