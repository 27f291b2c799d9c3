"""The server's end of subscriptions without a socket: a test pushes, refuses and loses connections as it likes."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from millrace.client.errors import ConnectionLostError
from millrace.client.options import ClientOptions
from millrace.client.transport.answers import Subscriber
from millrace.client.transport.channel import Channel
from millrace.client.transport.client_guard import ClientGuard
from millrace.client.transport.connection import Connection
from millrace.model.address import Address, Addresses
from millrace.model.errors import MillraceError
from millrace.wire import messages as m
from millrace.wire.client_session import Piece
from tests.support.clock import ManualClock


class SubscribeCall(NamedTuple):
    """A subscription as it was asked for."""

    segment_id: int
    offset: int
    credit_bytes: int
    event_index: int = 0


class FakeConnection:
    """Has what a `Subscription` uses of a connection, and remembers what was asked of it."""

    def __init__(self) -> None:
        self.is_open = True
        self.on_lost: Callable[[MillraceError], None] | None = None
        self.asked: list[SubscribeCall] = []
        self.grants: list[int] = []
        self.subscriber: Subscriber | None = None
        self.pings: list[asyncio.Future[Any]] = []

    def send_request(self, message: m.Message) -> "asyncio.Future[Any]":
        assert isinstance(message, m.Ping)
        self.pings.append(asyncio.get_running_loop().create_future())
        return self.pings[-1]

    def subscribe(
        self, subscriber: Subscriber, *, segment_id: int, offset: int, credit_bytes: int, event_index: int = 0
    ) -> int:
        self.asked.append(SubscribeCall(segment_id, offset, credit_bytes, event_index))
        self.subscriber = subscriber
        return len(self.asked)

    def grant(self, subscription: int, credit_bytes: int) -> None:
        assert subscription == len(self.asked)
        assert credit_bytes > 0
        self.grants.append(credit_bytes)

    def unsubscribe(self, subscription: int) -> None:
        assert subscription == len(self.asked)
        self.subscriber = None

    end_subscription = unsubscribe

    @property
    def credit_bytes(self) -> int:
        """All that was granted to the last subscription."""
        return self.asked[-1].credit_bytes + sum(self.grants)

    def abort(self, reason: str) -> None:
        self.lose(ConnectionLostError(reason))

    async def close(self) -> None:
        self.is_open = False

    # --- what the test does ---

    def push(self, offset: int, data: bytes, *, end: bool = False) -> None:
        assert self.subscriber is not None
        flags = m.DataFlag.END_OF_SEGMENT if end else 0
        self.subscriber.received(Piece(offset, memoryview(data), offset + len(data), flags))

    def answer_ping(self) -> None:
        """Answer the oldest PING that waits."""
        next(ping for ping in self.pings if not ping.done()).set_result(m.Pong())

    def refuse(self, error: MillraceError) -> None:
        subscriber, self.subscriber = self.subscriber, None
        assert subscriber is not None
        subscriber.failed(error)

    def lose(self, error: MillraceError) -> None:
        self.is_open = False
        if self.on_lost is not None:
            self.on_lost(error)
        for ping in self.pings:
            if not ping.done():
                ping.set_exception(error)
        if self.subscriber is not None:
            self.refuse(error)


class FakeServer:
    """Makes connections for a channel; `down` says why it cannot."""

    def __init__(self, options: ClientOptions | None = None) -> None:
        self.clock = ManualClock()
        self.down: MillraceError | None = None
        self.connections: list[FakeConnection] = []
        self.channel = Channel(
            Addresses((Address("fake", 1),)),
            options or ClientOptions(),
            ClientGuard(),
            clock=self.clock,
            chance=lambda: 0.0,
            connect=self._connect,
        )

    @property
    def connection(self) -> FakeConnection:
        """The last one that was made."""
        return self.connections[-1]

    async def _connect(self, address: Addresses, options: ClientOptions, session_id: bytes) -> Connection:
        del address, options, session_id
        if self.down is not None:
            raise self.down
        self.connections.append(FakeConnection())
        return cast("Connection", self.connection)
