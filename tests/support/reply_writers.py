"""The reply writer of a connection, with everything that it needs, and a transport of the caller."""

import asyncio
from collections.abc import Callable

from millrace.server.front.counters import FrontCounters
from millrace.server.front.latency import Latency
from millrace.server.front.reader_memory import ReaderMemory
from millrace.server.front.replies import error_reply
from millrace.server.front.reply_writer import ReplyWriter
from millrace.server.front.request_memory import RequestMemory
from millrace.server.host.clock import Clock
from millrace.server.host.metrics import Metrics
from millrace.wire.limits import MIB
from millrace.wire.server_session import ServerSession


class Connection:
    """A connection that holds nothing.

    Attributes:
        is_aborted: whether it was ended.
    """

    def __init__(self) -> None:
        self.is_aborted = False

    def give_back(self) -> None:
        raise AssertionError

    def request_room_found(self) -> None:
        raise AssertionError

    def unsent_bytes(self) -> int:
        return 0

    def abort(self) -> None:
        self.is_aborted = True


def make_reply_writer(
    clock: Clock,
    metrics: Metrics,
    connection: Connection,
    *,
    reply_writer_class: type[ReplyWriter] = ReplyWriter,
    may_be_superseded: Callable[[], bool] = lambda: False,
    transport: asyncio.Transport | None = None,
) -> ReplyWriter:
    """Return the reply writer of a connection."""
    counters = FrontCounters()
    requests = RequestMemory(bytes_max=64 * MIB, counters=counters).account(connection)
    session = ServerSession(
        now_s=clock.monotonic_s(),
        handshake_timeout_s=5.0,
        keepalive_s=20.0,
        frame_timeout_s=30.0,
        run_size_bytes_max=MIB,
        refusal=error_reply,
        allowance=requests,
    )
    readers = ReaderMemory(bytes_max=16 * MIB, patience_s=5.0, clock=clock, counters=counters)
    reply_writer = reply_writer_class(
        session,
        clock=clock,
        counters=counters,
        account=readers.account(connection),
        requests=requests,
        latency=Latency(clock, metrics.request_seconds),
        may_be_superseded=may_be_superseded,
        abort=connection.abort,
    )
    reply_writer.transport = transport
    return reply_writer
