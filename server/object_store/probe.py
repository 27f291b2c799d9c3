"""Whether an object store keeps its promises: many accept a condition and ignore it, or check it without a lock.

Of any number of conditional puts at once exactly one may succeed, over whatever connections they come. HTTP/1.1, which
the stores speak, has one request on a connection at a time, so requests at once are on connections of their own.

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
"""What a probe stored that began so long ago was left by it: none takes so long, and no clock is as wrong."""
_BEGUN: Final = re.compile(rf"{PREFIX}(\d{{12}})-", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Honesty:
    """What a store did when it was asked for what it must be able to do.

    Attributes:
        created: of 20 puts at once under one new key, how many succeeded.
        replaced: of 20 puts at once in place of one object, how many succeeded.
        refuses_stale: whether a put in place of an object that had been replaced was refused.
        reads_latest: whether a read then found what the last put had stored.
        lists_latest: whether a listing had all that was stored, in order, and nothing that had been deleted.
    """

    created: int
    replaced: int
    refuses_stale: bool
    reads_latest: bool
    lists_latest: bool

    @property
    def fault(self) -> str:
        """What is wrong, as it continues "the store"; empty if it can be relied on."""
        if self.created != 1:
            return f"let {self.created} of {AT_ONCE} puts at once create one object, where exactly 1 may succeed"
        if self.replaced != 1:
            return f"let {self.replaced} of {AT_ONCE} puts at once replace one object, where exactly 1 may succeed"
        if not self.refuses_stale:
            return "replaced an object although the condition named an earlier content"
        if not self.reads_latest:
            return "returned an earlier content after a put had succeeded"
        if not self.lists_latest:
            return "listed objects other than those that there were"
        return ""


async def probe(store: RetryingStore, *, clock: Clock | None = None) -> Honesty:
    """Ask a store for what every server relies on, under keys of its own, which it deletes again.

    Takes 88 requests (43 puts, 41 gets, 2 lists, 2 deletes), most of them at once. What a probe stored that is killed,
    or cannot delete it at once when it fails, stays, a few hundred bytes, until a probe a day later deletes it.

    Args:
        store: repeats what has no answer, or single failures fail the probe.
        clock: tells when this one begins.

    Raises:
        StoreUnavailableError: it does not answer.
        StoreRefusedError: it does not permit it, or knows no conditional puts.
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
        # Once: a store that fails would be asked for as long again, and its second failure told in place of the first.
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
    """Return which contents of some conditional puts of a key, made at once, succeed.

    One whose outcome is unknown has succeeded if what is there in the end is its own: the store is judged, not the way.

    Raises:
        StoreUnavailableError: none succeeded although one had to, and not all were refused.
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
