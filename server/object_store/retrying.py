"""An object store that retries requests without an answer, and finds out their outcome.

A put without an answer may have happened, so its retry may find the object of the first attempt. Then, and whenever the
store reports that a key is taken or has changed, the object is read: exactly our bytes are a success. Contents that
must be distinguished therefore differ, by a nonce or by their fields (docs/decisions/0059).

Each call ends. When its patience is over, it raises that the store is unavailable, or busy if that was the last answer.
Neither is fatal: the caller retries after a pause, and meanwhile does what needs no store. A full store is raised at
once: it can last for days, and the caller has to do without.

A slow read is hedged: it is sent a second time beside the first, and the first answer counts. So is a create if a
caller waits for it (`with_hedged_creates`). Both puts have the same name and the same bytes, so it does not matter
which is stored; the other is abandoned. If that one arrives later, it finds the name taken, or stores the same again if
the object was deleted meanwhile. Callers must choose names that tolerate this, as after any lost answer.

This module owns the waits, the bound of their sum, hedges, and the shield that lets a put finish without its caller.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

from millrace.model.checksum import Buffer
from millrace.server.errors import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreFullError,
    StoreUnavailableError,
)
from millrace.server.host.clock import Clock, SystemClock
from millrace.server.host.metrics import Metrics
from millrace.server.host.supervisor import mark_seen
from millrace.wire.limits import KIB

from .hedging import UsualTime, hedged
from .monitor import Kind, StoreMonitor
from .options import ObjectStoreOptions
from .reserve import Reserve
from .store import ObjectInfo, ObjectStore, StoredObject

logger = logging.getLogger(__name__)

PAUSE_S_MIN: Final = 0.1
PAUSE_S_MAX: Final = 5.0
CLOSE_S_MAX: Final = 1.0
"""How long a close waits for puts under way: a stopping server has used up most of its deadline by then."""
LARGE_BYTES: Final = 256 * KIB
"""Reads from this size on take longer because of it, and are compared with each other."""

T = TypeVar("T")


class RetryingStore:
    """An `ObjectStore` that retries on another one, which it closes in the end.

    Beyond the contract: a `create` whose key has an object of the same bytes is a success, even if another caller
    stored it; so is a `replace`. Errors with `changed_nothing` are raised only if that is known. After `patience_s` no
    attempt begins; in a listing, after that time without a page.

    Args:
        store: makes one attempt a call.
        monitor: counts requests; has a registry of its own if not given.
        random: for the length of pauses.

    Attributes:
        reserve: released by each attempt that finds the store full; see `with_reserve`.
    """

    def __init__(
        self,
        store: ObjectStore,
        options: ObjectStoreOptions | None = None,
        *,
        clock: Clock | None = None,
        monitor: StoreMonitor | None = None,
        random: Random | None = None,
    ) -> None:
        self._store = store
        self._options = options or ObjectStoreOptions()
        self._clock = clock or SystemClock()
        self.monitor = monitor or StoreMonitor(Metrics(), self._clock)
        self._random = random or Random()
        self._usual: defaultdict[tuple[Kind, bool], UsualTime] = defaultdict(UsualTime)
        self._under_way: set[asyncio.Future[Any]] = set()
        self._closing = asyncio.Event()
        self._hedges_creates = False
        self.reserve: Reserve | None = None

    def with_hedged_creates(self) -> "RetryingStore":
        """Return this store with hedging of creates, each once. Closing either store closes both."""
        hedging = copy(self)
        hedging._hedges_creates = True  # noqa: SLF001  # of this very class
        return hedging

    def with_reserve(self, size_bytes: int) -> "RetryingStore":
        """Return this store with a reserve, whose task the owner runs. Closing either store closes both."""
        reserving = copy(self)
        reserving.reserve = Reserve(self, size_bytes=size_bytes, clock=self._clock)
        return reserving

    async def create(self, key: str, pieces: Sequence[Buffer]) -> str:
        """Store a new object, see `ObjectStore`. A cancelled call still completes, unless `close` cuts it."""
        return await self._shielded(self._create(key, b"".join(pieces)))

    async def replace(self, key: str, content: Buffer, *, tag: str) -> str:
        """Replace an object that has a tag, see `ObjectStore`; for a cancelled call, see `create`.

        Raises:
            StoreUnavailableError: also when an attempt had no answer and the object is now neither the one with the tag
                nor ours: ours may have been there in between.
        """
        return await self._shielded(self._replace(key, bytes(content), tag))

    async def get(self, key: str) -> StoredObject:
        """Return a whole object, see `ObjectStore`."""
        return await self._repeated(lambda: self._hedged_read("get", lambda: self._store.get(key)))

    async def read(self, key: str, *, offset: int, size: int) -> bytes:
        """Return a part of an object, see `ObjectStore`."""

        async def attempt() -> bytes:
            data = await self._hedged_read(
                "read", lambda: self._store.read(key, offset=offset, size=size), is_large=size >= LARGE_BYTES
            )
            if len(data) < size and offset + len(data) < await self._attempt("size", lambda: self._store.size(key)):
                raise StoreUnavailableError("closed before the answer arrived", subject=key)
            return data

        return await self._repeated(attempt)

    async def size(self, key: str) -> int:
        """Return the size of an object, see `ObjectStore`."""
        return await self._repeated(lambda: self._hedged_read("size", lambda: self._store.size(key)))

    async def list(self, prefix: str = "", *, after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Yield pages of a listing, see `ObjectStore`; resumed after the last page that arrived."""
        patience = self._patience()
        pages = self._store.list(prefix, after=after)
        while True:
            try:
                page = await self._attempt("list", partial(_next, pages))
            except StoreUnavailableError as error:
                await patience.wait(error)
                pages = self._store.list(prefix, after=after)
                continue
            if page is None:
                return
            after = page[-1].key
            yield page
            patience = self._patience()

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, see `ObjectStore`."""
        await self._repeated(lambda: self._attempt("delete", lambda: self._store.delete(keys)))

    async def delete_once(self, keys: Sequence[str]) -> None:
        """Delete objects in one attempt, see `ObjectStore`. For objects that may also stay."""
        await self._attempt("delete", lambda: self._store.delete(keys))

    async def close(self) -> None:
        """Make no further attempts, give puts under way a moment to end, and close the other store.

        The outcome of a put that does not end in that moment is open.
        """
        self._closing.set()
        with suppress(TimeoutError):
            async with self._clock.timeout(CLOSE_S_MAX):
                while self._under_way:
                    await asyncio.wait(self._under_way)
        if self._under_way:
            logger.warning("puts to the object store abandoned at close count=%d", len(self._under_way))
        while self._under_way:
            for task in self._under_way:
                task.cancel()
            await asyncio.wait(self._under_way)
        await self._store.close()

    # --- puts ---

    async def _create(self, key: str, content: bytes) -> str:
        patience = self._patience()

        async def attempt(usual: UsualTime | None = None) -> str:
            try:
                return await self._attempt("create", lambda: self._store.create(key, [content]), usual)
            except ObjectExistsError as error:
                patience.is_open = True  # it may be ours, until it was read
                found = await self._found(key, patience)
                if found is None:
                    message = "the store reports that the object exists, but does not return one"
                    raise StoreUnavailableError(message, subject=key) from error
                if found.content != content:
                    raise
                return found.tag

        may_hedge = self._hedges_creates

        def on_hedge() -> None:
            nonlocal may_hedge
            may_hedge = False

        is_large = len(content) >= LARGE_BYTES
        while True:
            try:
                if may_hedge:
                    return await self._hedged("create", attempt, is_large=is_large, on_hedge=on_hedge)
                return await attempt()
            except StoreUnavailableError as error:
                failure = error
            await patience.wait(failure)

    async def _replace(self, key: str, content: bytes, tag: str) -> str:
        patience = self._patience()
        is_open = False
        while True:
            try:
                return await self._attempt("replace", lambda: self._store.replace(key, content, tag=tag))
            except StoreUnavailableError as error:
                failure = error
                # An attempt that the store rejected opens nothing, or two rivals on a sound store could not be told
                # apart.
                is_open = is_open or not error.changed_nothing
            except ObjectChangedError as error:
                patience.is_open = True
                found = await self._found(key, patience)
                if found is not None and found.content == content:
                    return found.tag
                if found is None or found.tag != tag:
                    if not is_open:
                        raise
                    message = "the object has changed; it is unknown whether our version was stored in between"
                    raise StoreUnavailableError(message, subject=key) from error
                failure = StoreUnavailableError(
                    "the store reports that the object has changed, but it has not", subject=key
                )
            await patience.wait(failure)

    async def _found(self, key: str, patience: "_Patience") -> StoredObject | None:
        try:
            return await self._repeated(lambda: self._hedged_read("get", lambda: self._store.get(key)), patience)
        except ObjectNotFoundError:
            return None

    async def _shielded(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._done)
        # Waiting, unlike awaiting, does not hand a cancellation on.
        await asyncio.wait([task])
        if task.cancelled():
            raise StoreUnavailableError("the store was closed before it answered")
        return task.result()

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._under_way.discard(task)
        mark_seen(task)  # a caller that still waits receives it

    # --- attempts ---

    async def _repeated(self, attempt: Callable[[], Awaitable[T]], patience: "_Patience | None" = None) -> T:
        patience = patience or self._patience()
        while True:
            try:
                return await attempt()
            except StoreUnavailableError as error:
                await patience.wait(error)

    async def _hedged_read(self, kind: Kind, make: Callable[[], Awaitable[T]], *, is_large: bool = False) -> T:
        return await self._hedged(kind, partial(self._attempt, kind, make), is_large=is_large)

    async def _hedged(
        self,
        kind: Kind,
        attempt: Callable[[UsualTime], Awaitable[T]],
        *,
        is_large: bool,
        on_hedge: Callable[[], None] = lambda: None,
    ) -> T:
        """Send a request once, or twice if it is slow.

        Args:
            attempt: sends the request once, and records its duration.
        """
        usual = self._usual[kind, is_large]
        slow_s = usual.slow_s
        if slow_s is None:
            return await attempt(usual)

        def may_hedge() -> bool:
            # A second request would only add to the load of a store that rate-limits.
            if self.monitor.is_busy or not usual.take_hedge():
                return False
            self.monitor.hedged(kind)
            on_hedge()
            return True

        # At the latest after the timeout of an attempt: the percentile of a store in trouble means little.
        slow_s = min(slow_s, self._options.attempt_s)
        return await hedged(lambda: attempt(usual), slow_s=slow_s, clock=self._clock, may_hedge=may_hedge)

    async def _attempt(self, kind: Kind, make: Callable[[], Awaitable[T]], usual: UsualTime | None = None) -> T:
        """Send a request once, and count it, unless its caller was cancelled."""
        started_s = self._clock.monotonic_s()
        try:
            result = await make()
        except Exception as error:
            self.monitor.ended(kind, self._clock.monotonic_s() - started_s, error)
            if self.reserve is not None and isinstance(error, StoreFullError):
                await self.reserve.release(error)
            raise
        duration_s = self._clock.monotonic_s() - started_s
        self.monitor.ended(kind, duration_s, None)
        if usual is not None:
            usual.add(duration_s)
        return result

    def _patience(self) -> "_Patience":
        return _Patience(
            self._options.patience_s,
            clock=self._clock,
            random=self._random,
            closing=self._closing,
            on_wait=self.monitor.repeated,
        )


class _Patience:
    """The pauses of one call, each about twice as long as the one before, up to a deadline.

    Attributes:
        is_open: whether any attempt so far may have changed something; the final error reports it, whatever the last
            attempt returned.
    """

    def __init__(
        self,
        patience_s: float,
        *,
        clock: Clock,
        random: Random,
        closing: asyncio.Event,
        on_wait: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._random = random
        self._closing = closing
        self._on_wait = on_wait
        self._pause_s = PAUSE_S_MIN
        self._end_s = clock.monotonic_s() + patience_s
        self.is_open = False

    async def wait(self, error: StoreUnavailableError) -> None:
        """Return when the next attempt is due.

        Raises:
            StoreUnavailableError: as `error`, if there is no next attempt: the patience is over, or the store is full
                or closed. A busy store is no exception, or the caller would wait as long as it is busy.
        """
        self.is_open = self.is_open or not error.changed_nothing
        # Random, so that requests that were rejected together are not retried together.
        pause_s = self._pause_s * self._random.uniform(0.5, 1.0)
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        is_over = self._closing.is_set() or self._clock.monotonic_s() + pause_s > self._end_s
        if is_over or isinstance(error, StoreFullError):
            raise self._last(error)
        with suppress(TimeoutError):
            async with self._clock.timeout(pause_s):
                await self._closing.wait()
        if self._closing.is_set():
            raise self._last(error)
        self._on_wait()

    def _last(self, error: StoreUnavailableError) -> StoreUnavailableError:
        if error.changed_nothing and self.is_open:
            return type(error)(error.message, subject=error.subject)
        return error


async def _next(pages: AsyncIterator[Sequence[ObjectInfo]]) -> Sequence[ObjectInfo] | None:
    return await anext(pages, None)
