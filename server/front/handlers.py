"""Requests that are neither appends nor reads: message in, reply out, by the tables of `requests`.

Errors are raised; the dispatcher turns them into replies in one place. A rejection reveals durable state only: before
the error is passed on, every request except a query waits for the state that the rejection rests on.

Requests of a transaction may be sent without waiting for answers: `admit` decides them in the order in which they were
sent, together with the appends between; the reply follows when the decision is durable.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial

from millrace.server.container.container import SegmentContainer
from millrace.server.container.entity_cache import Pins
from millrace.server.container.requests import ClientOrigin, OrderedRequest, Reply, handlers_of
from millrace.server.container.state.transaction import NO_SESSION
from millrace.server.errors import InvalidArgumentError, ServerError
from millrace.wire import messages as m

from .read_only_guard import check_answerable


class Handlers:
    """The requests that a connection passes on; shared by all connections of a client.

    Args:
        groups: objects whose methods answer requests, see `handlers_of`.
        ordered: requests that are decided in the order in which they were sent.

    Attributes:
        origin: of the requests.
    """

    def __init__(
        self,
        container: SegmentContainer,
        groups: Sequence[object],
        ordered: Mapping[type[m.Message], OrderedRequest],
    ) -> None:
        self.container = container
        self.origin = ClientOrigin(NO_SESSION, "")
        self._handlers = handlers_of(groups)
        self._ordered = ordered

    def of_session(self, session_id: bytes, address: str) -> "Handlers":
        """Return handlers for the requests of one client."""
        bound = copy(self)
        bound.origin = ClientOrigin(session_id, address)
        return bound

    async def handle(self, message: m.Message) -> m.Message:
        """Carry out a request and return its reply. Cancelling does not undo a decision.

        Raises:
            ContentLostError: the log has lost content that the answer may rest on.
            DecisionLostError: the request was rejected because of state that did not become durable.
            ServerError, InvalidNameError: the request failed.
        """
        check_answerable(message, self.container.loss)
        handler = self._handlers.get(type(message))
        if handler is None:
            raise InvalidArgumentError(f"{message.type.name} is not a request")
        with await self.pin(message):
            try:
                return await handler(message)
            except ServerError as error:
                return await self._refused(message, error)

    def admit(self, message: m.Message) -> Reply | None:
        """Decide a request of a transaction in this step, if it need not wait; else return None.

        The result raises like `handle`.
        """
        request = self._ordered.get(type(message))
        if request is None or not self.container.loader.is_resident(m.required_entities(message)):
            return None
        try:
            check_answerable(message, self.container.loss)
            return request.decide(message, self.origin)
        except Exception as error:  # noqa: BLE001  # the dispatcher makes it a reply, as of every request
            return partial(self._refused, message, error)

    def precedes_appends(self, message: m.Message) -> bool:
        """Return whether later appends are not processed before the request is decided."""
        request = self._ordered.get(type(message))
        return request is not None and request.precedes_appends

    async def admitted(self, message: m.Message) -> Reply:
        """Decide a request that precedes appends when that is possible; cancelling is safe. The result raises."""
        request = self._ordered[type(message)]
        with await self.pin(message):
            try:
                check_answerable(message, self.container.loss)
                if request.wait is not None:
                    return await request.wait(message, self.origin)
                reply = request.decide(message, self.origin)
            except ServerError as error:
                return partial(self._refused, message, error)
            assert reply is not None, "nothing has to be waited for"
            return reply

    async def _refused(self, message: m.Message, error: Exception) -> m.Message:
        """Raise why a request is rejected, once the state that the rejection rests on is durable."""
        # The rejection was decided in this turn of the loop: the state it rests on is durable already, or in flight
        # now.
        try:
            if isinstance(error, ServerError) and error.tells_state and not isinstance(message, m.Query):
                await self.container.in_flight.settled()
            raise error
        finally:
            del error  # its traceback has this frame: a cycle, which would keep the message until it is collected

    async def pin(self, message: m.Message) -> Pins:
        """Load the entities that a request names, and pin them until the result is released.

        Raises:
            StorageError: the checkpoint cannot be read.
        """
        return await self.container.loader.pin(m.required_entities(message))
