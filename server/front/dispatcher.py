"""Dispatches the frames of one connection: appends, reads, and requests with a task and a reply each.

A frame that needs an entity which is not resident waits until that is loaded, and so do all later frames of the peer: a
later append may not overtake it, a CREDIT must find its subscription. Requests of a transaction are decided in the
order in which they were sent: at once if they need not wait.
"""

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from millrace.server.container.container import RETRY_AFTER_MS
from millrace.server.container.entity_cache import Pins
from millrace.server.container.requests import PendingReply, ReadyReply
from millrace.server.errors import CheckpointDamagedError, PipelineBrokenError, ServerError, ShuttingDownError
from millrace.wire import messages as m
from millrace.wire.append_run import AppendRun
from millrace.wire.errors import WireError
from millrace.wire.framing import encode
from millrace.wire.limits import APPENDS_IN_FLIGHT_MAX
from millrace.wire.server_session import CARRIED_OUT, ClientFrame

from .flow_control import FlowControl, Reason
from .handlers import Handlers
from .latency import RequestTimer
from .options import FrontOptions
from .pending_replies import PendingReplies
from .reader_memory import ReaderMemory
from .reads import Reads
from .reply_writer import NO_REPLY, ReplyWriter
from .tasks import ConnectionTasks


class Dispatcher:
    """Carries out the frames of one connection that follow its handshake.

    Args:
        abort: ends the connection at once.
        violated: called if a frame that waited to be loaded violates the protocol; ends the connection.
        progressed: called when a task or some appends have ended.
    """

    def __init__(
        self,
        handlers: Handlers,
        *,
        reply_writer: ReplyWriter,
        flow: FlowControl,
        options: FrontOptions,
        memory: ReaderMemory,
        abort: Callable[[], None],
        violated: Callable[[WireError], None],
        progressed: Callable[[], None],
    ) -> None:
        self._handlers = handlers
        self._container = handlers.container
        self._session = reply_writer.session
        self._reply_writer = reply_writer
        self._flow = flow
        self._abort = abort
        self._violated = violated
        self._progressed = progressed
        self._replies = PendingReplies(
            self, handlers.container.in_flight, reply_writer=reply_writer, flow=flow, count_max=options.tasks_count_max
        )
        self._tasks = ConnectionTasks(flow, count_max=options.tasks_count_max, failed=abort, ended=progressed)
        self.reads = Reads(
            handlers.container,
            reply_writer=reply_writer,
            flow=flow,
            tasks=self._tasks,
            memory=memory,
            waiting_count_max=options.parked_reads_count_max,
            write_buffer_bytes=options.write_buffer_bytes_high,
        )

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in progress that a draining connection should wait for."""
        return not self._tasks and not self._replies and not self._session.appends.count

    def greeted(self, session_id: bytes, address: str) -> None:
        """Set the client of all later frames."""
        self._handlers = self._handlers.of_session(session_id, address)

    def take_appends(self, run: AppendRun) -> None:
        """Pass a run of appends to the container, once its segment and its writer are resident, and its times clamped.

        Entities loaded for a run are pinned until it is admitted, so residency is not checked again then.
        """
        container = self._container
        if self._session.is_draining or (container.is_resident(run) and not container.clamp.is_due(run)):
            self._admit(run)
            return
        prepared = [run]
        self._take_when_loaded(
            partial(self._prepare, prepared),
            lambda: self._admit_loaded(prepared[0]),
            failed=lambda error: self._refuse_unloaded(run, error),
            size=len(run.frames),
        )

    async def _prepare(self, runs: list[AppendRun]) -> Pins:
        """Load and pin the entities of the only run of a list, and replace the run by one with clamped event times."""
        (run,) = runs
        writers = [run.writer_number] if run.writer_number else []
        with await self._container.loader.pin(m.Required(segments=[run.segment_id], writers=writers)) as pins:
            runs[0] = await self._container.clamp.clamped(run)
            return pins.transfer()

    def settle(self) -> None:
        """Send the known outcomes.

        Called by the container once for each log batch, and by the connection for outcomes that need no log.
        """
        appends = self._session.appends
        untold = appends.count
        self._session.put_outcomes()
        if appends.count < untold:
            self._reply_writer.latency.appends_told(untold - appends.count)
        self._replies.put()
        self._reply_writer.flush()
        self._flow.set(Reason.APPENDS_IN_FLIGHT, appends.count >= APPENDS_IN_FLIGHT_MAX)
        self._progressed()

    def take(self, received: ClientFrame) -> None:
        """Carry out a frame that is neither HELLO nor an append."""
        request_id, message, held_bytes, is_answered = received
        if message.type in CARRIED_OUT:
            self._take_request(request_id if is_answered else NO_REPLY, message, held_bytes)
            return
        match message:
            case m.Read() | m.Subscribe() if not self._container.state.segments.is_resident(message.segment_id):
                self._take_when_loaded(
                    partial(self._handlers.pin, message),
                    lambda: self._take_read(message, request_id),
                    failed=lambda error: self._reply_writer.send_error(request_id, error),
                )
            case m.Read() | m.Subscribe():
                self._take_read(message, request_id)
            case m.Credit():
                self.reads.give_credit(request_id, message.credit_bytes)
            case m.Unsubscribe():
                self.reads.end(request_id)
            case _:  # PING and PONG
                self._reply_writer.flush()

    def cancel(self) -> None:
        """Release everything: the connection was lost. Appends in flight still become durable."""
        self._container.stop_waiting_for_room(self._room_found)
        self.reads.cancel()
        self._tasks.cancel()

    def _admit(self, run: AppendRun, *, failure: ServerError | None = None) -> None:
        """Pass a run to the container, or reject it, with `failure` if given; `settle` sends the outcome.

        If the container is full, the peer is throttled once, and not read until there is space.

        Raises:
            ProtocolError: the client continues after too many failures that it does not acknowledge.
        """
        session, counters = self._session, self._reply_writer.counters
        counters.appends_total += run.frame_count
        self._reply_writer.latency.appends_taken(run.frame_count)
        try:
            if failure is not None:
                raise failure
            if session.is_draining:
                raise ShuttingDownError("the server is shutting down", retry_after_ms=1000)
            if session.appends.is_broken(run.segment_id, run.writer_number):
                raise PipelineBrokenError("an earlier append of this pipeline failed; this one was not applied")
            taken = self._container.append(run, self)
        except ServerError as error:
            counters.requests_failed_total += run.frame_count
            taken = [self._container.refuse(run, self, error)]
        session.appends.add(taken)
        if session.appends.count >= APPENDS_IN_FLIGHT_MAX:
            self._flow.set(Reason.APPENDS_IN_FLIGHT, True)
        self._throttle()

    def _throttle(self) -> None:
        """Stop reading while the container is full, and throttle the peer."""
        reason = self._container.throttle_reason
        if reason:
            self._reply_writer.counters.throttled_total += 1
            self._reply_writer.counters.throttled_last = reason
            self._container.wait_for_room(self._room_found)
            self._reply_writer.send(encode(m.Throttle(RETRY_AFTER_MS, reason)))
            self._flow.set(Reason.CONTAINER_FULL, True)

    def _admit_loaded(self, run: AppendRun, *, failure: ServerError | None = None) -> None:
        self._admit(run, failure=failure)
        # No log batch settles a rejected run or a duplicate; nor does the walk, if the container is full.
        if self._session.appends.has_outcomes:
            self.settle()

    def _refuse_unloaded(self, run: AppendRun, error: ServerError) -> None:
        if isinstance(error, CheckpointDamagedError):
            self._abort()  # the container is about to be started again
        else:
            self._admit_loaded(run, failure=error)

    def _room_found(self) -> None:
        self._flow.set(Reason.CONTAINER_FULL, False)

    def _take_request(self, request_id: int, message: m.Message, held_bytes: int) -> None:
        """Carry out a request by a task, unless it is decided in this step."""
        if self._session.is_draining:
            self._reply_writer.requests.give(held_bytes)
            self._reply_writer.send_error(
                request_id, ShuttingDownError("the server is shutting down", retry_after_ms=1000)
            )
            return
        timer = RequestTimer(request_id, message.type.name, self._reply_writer.latency.received_s)
        reply = self._handlers.admit(message)
        if isinstance(reply, ReadyReply):
            self._follow(reply, timer, held_bytes=held_bytes)
        else:
            carried_out = self._carry_out(message, timer, reply)
            task = self._tasks.start(carried_out, name=f"request {message.type.name}")
            task.add_done_callback(lambda _: self._reply_writer.requests.give(held_bytes))

    def _follow(self, reply: ReadyReply, timer: RequestTimer, *, held_bytes: int) -> None:
        """Send the reply when it is durable; if none is wanted, only the log bounds the pending requests."""
        if timer.request_id != NO_REPLY:
            self._replies.add(reply.message, timer, is_new=reply.is_new, held_bytes=held_bytes)
        else:
            self._reply_writer.requests.give(held_bytes)
            self._throttle()

    def _take_read(self, message: m.Read | m.Subscribe, request_id: int) -> None:
        if isinstance(message, m.Read):
            self.reads.read(message, request_id)
        else:
            self.reads.subscribe(message, request_id)

    def _carry_out(
        self, message: m.Message, timer: RequestTimer, reply: PendingReply | None
    ) -> Coroutine[Any, Any, None]:
        """Return the coroutine that completes a request, given its reply if it was decided."""
        if reply is not None:
            return self._answer(reply, timer)
        if self._handlers.precedes_appends(message):
            self._flow.set(Reason.LOADING, True)
            return self._answer_in_order(message, timer)
        return self._answer(partial(self._handlers.handle, message), timer)

    async def _answer_in_order(self, message: m.Message, timer: RequestTimer) -> None:
        """Answer a request that has to wait before it is decided; later frames are read then."""
        try:
            reply = await self._handlers.admitted(message)
            if isinstance(reply, ReadyReply):
                self._follow(reply, timer, held_bytes=0)
                return
        except Exception as error:  # noqa: BLE001  # as in `_answer`
            self._reply_writer.send_error(timer.request_id, error)
            return
        finally:
            self._flow.set(Reason.LOADING, False)
        await self._answer(reply, timer)

    async def _answer(self, reply: PendingReply, timer: RequestTimer) -> None:
        try:
            frame = encode(await reply(), request_id=timer.request_id)
        except Exception as error:  # noqa: BLE001  # whatever a request meets becomes its reply, in this one place
            self._reply_writer.send_error(timer.request_id, error)
        else:
            self._reply_writer.send_soon(frame)
        finally:
            self._reply_writer.latency.answered(timer)
            # A rejection has the error, whose traceback has this frame: a cycle, which would keep the message alive.
            del reply

    def _take_when_loaded(
        self,
        load: Callable[[], Awaitable[Pins]],
        take: Callable[[], None],
        *,
        failed: Callable[[ServerError], None],
        size: int = 0,
    ) -> None:
        """Carry out a frame of this size when its entities are in memory."""
        self._flow.set(Reason.LOADING, True)
        if size:
            # These bytes were in the receive buffer before: its memory is theirs now.
            self._session.give_back()
            self._reply_writer.requests.hold(size)
        task = self._tasks.start(self._load(load, take, failed), name="load")
        task.add_done_callback(lambda _: self._reply_writer.requests.give(size))

    async def _load(
        self, load: Callable[[], Awaitable[Pins]], take: Callable[[], None], failed: Callable[[ServerError], None]
    ) -> None:
        try:
            with await load():
                take()
        except ServerError as error:
            failed(error)
        except WireError as error:
            self._violated(error)
        finally:
            self._flow.set(Reason.LOADING, False)
